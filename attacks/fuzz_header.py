"""Fuzz, guided by coverage, everything that reads bytes or text before anything is authentic.

Usage: python -m attacks.fuzz_header --runs 1000000 --seed 1

The header parser, the opener of sealed blocks, the scope token and the owner tag. They may refuse
with `OpenError` or `ScopeMismatchError` and with nothing else; what they accept is exactly what we
made; what the opener refuses leaves zeros. Ends with another code than 0 at the first input for
which that is not so, and writes the input out. With `--control` something is broken first, and must
be found. Needs atheris (Linux on x86-64, Python 3.11 to 3.13).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["kvward"]):
    from kvward.errors import OpenError, ScopeMismatchError
    from kvward.scope import SealKey
    from kvward.scope.keys import TokenKey
    from kvward.scope.owner import encode_owner_tag, verify_owner
    from kvward.scope.token import encode_token, verify_token
    from kvward.seal import OVERHEAD_BYTES, BlockSealer, Lifetime, OpenRefusal
    from kvward.seal.header import HEADER_BYTES, Header, parse_unverified_header

NOW = 1_000_000
NAME, LAYOUT, PLAIN = b"n" * 64, b"l" * 32, bytes(range(48))
LIFETIME = Lifetime(oldest_unix_s=NOW - 100, newest_unix_s=NOW + 10)
TOKEN_KEY = TokenKey(b"t" * 32)
TENANT_ID = b"i" * 24
_EPOCHS = (0, 7, 2**63 - 1)

_SEALER = BlockSealer(SealKey(b"k" * 32), epoch=3)


def _seal() -> bytes:
    out = bytearray(len(PLAIN) + OVERHEAD_BYTES)
    _SEALER.seal_into(
        PLAIN,
        memoryview(out),
        name=NAME,
        layout_digest=LAYOUT,
        created_unix_s=NOW,
        nonce=b"o" * 24,
    )
    return bytes(out)


SEALED = _seal()
TOKENS = {encode_token(TOKEN_KEY, scope_id=b"s" * 24, epoch=epoch) for epoch in _EPOCHS}
PAIRS = {(encode_owner_tag(TOKEN_KEY, token=token, tenant_id=TENANT_ID), token) for token in TOKENS}


def fuzz_parser(data: bytes) -> None:
    """Check that a header is refused, or says the same when it is written again."""
    try:
        header = parse_unverified_header(data)
    except OpenError as exc:
        _check_refusal(exc)
        return
    assert header.to_bytes() == data[:HEADER_BYTES]
    assert header.plain_bytes == len(data) - OVERHEAD_BYTES


def fuzz_opener(data: bytes) -> None:
    """Check that nothing opens but what was sealed, and that all else leaves zeros."""
    out = bytearray(b"\xaa" * len(PLAIN))
    try:
        _SEALER.open_into(data, memoryview(out), name=NAME, layout_digest=LAYOUT, lifetime=LIFETIME)
    except OpenError as exc:
        _check_refusal(exc)
        assert not any(out)
        return
    assert data == SEALED
    assert out == PLAIN


def fuzz_token(data: bytes) -> None:
    """Check that no token verifies but those that were issued."""
    text = _to_text(data)
    try:
        verified = verify_token(text, token_key=TOKEN_KEY)
    except ScopeMismatchError:
        return
    assert text in TOKENS
    assert verified.scope_id == b"s" * 24


def fuzz_owner(data: bytes) -> None:
    """Check that no owner tag verifies but those that were issued, each beside its token."""
    tag, _, token = _to_text(data).partition("\n")
    try:
        owner = verify_owner(tag, token=token, token_key=TOKEN_KEY)
    except ScopeMismatchError:
        return
    assert (tag, token) in PAIRS
    assert owner.tenant_id == TENANT_ID


_TARGETS: tuple[Callable[[bytes], None], ...] = (fuzz_parser, fuzz_opener, fuzz_token, fuzz_owner)


def fuzz(data: bytes) -> None:
    """Give an input to the target that its first byte names."""
    if data:
        _TARGETS[data[0] % len(_TARGETS)](data[1:])


def seeds() -> list[bytes]:
    """Return what the fuzzer begins with: one input that is accepted for each thing there is."""
    return [
        bytes([0]) + SEALED,
        bytes([1]) + SEALED,
        *(bytes([2]) + token.encode() for token in sorted(TOKENS)),
        *(bytes([3]) + f"{tag}\n{token}".encode() for tag, token in sorted(PAIRS)),
    ]


def _check_refusal(error: OpenError) -> None:
    assert str(error) == "The sealed block does not open."
    assert error.hint is None
    assert error.reason in set(OpenRefusal)


def _to_text(data: bytes) -> str:
    """Return any text at all, lone surrogates included."""
    return data.decode("utf-8", errors="surrogateescape")


def _break_the_parser() -> None:
    """Read a header without asking first whether there is one."""
    genuine = parse_unverified_header

    def parse(sealed: bytes) -> Header:
        assert len(sealed) < OVERHEAD_BYTES or sealed[4] in {0, 1, 2}, "a version out of range"
        return genuine(sealed)

    globals()["parse_unverified_header"] = parse


def _break_the_opener() -> None:
    """Leave what the cipher refused where it is."""
    genuine = BlockSealer.open_into

    def open_into(self: BlockSealer, sealed: bytes, out: memoryview, **where: object) -> None:
        try:
            genuine(self, sealed, out, **where)  # type: ignore[arg-type]
        except OpenError as exc:
            if exc.reason == OpenRefusal.NOT_AUTHENTIC:
                out[:] = bytes(len(out) - 1) + b"\1"
            raise

    BlockSealer.open_into = open_into  # type: ignore[method-assign, assignment]


def _break_the_token() -> None:
    """Read over spaces, as lenient decoders of base64 do."""
    genuine = verify_token

    def verify(text: str, *, token_key: TokenKey) -> object:
        return genuine("".join(text.split()), token_key=token_key)

    globals()["verify_token"] = verify


_CONTROLS = {
    "parser": _break_the_parser,
    "opener": _break_the_opener,
    "token": _break_the_token,
}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--artifacts", type=Path, default=Path(), help="where to write a find")
    parser.add_argument("--control", choices=sorted(_CONTROLS))
    arguments = parser.parse_args()
    if arguments.control:
        _CONTROLS[arguments.control]()
    with tempfile.TemporaryDirectory() as name:
        for number, seed in enumerate(seeds()):
            (Path(name) / str(number)).write_bytes(seed)
        atheris.Setup(
            [
                sys.argv[0],
                f"-runs={arguments.runs}",
                f"-seed={arguments.seed}",
                "-max_len=512",
                f"-artifact_prefix={arguments.artifacts}/",
                name,
            ],
            fuzz,
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
