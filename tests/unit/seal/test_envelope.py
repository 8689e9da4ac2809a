"""Sealed block v1: what opens, what must not, and what is left behind when it does not."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.errors import OpenError
from kvward.scope import SealKey
from kvward.seal import (
    OVERHEAD_BYTES,
    BlockSealer,
    Lifetime,
    OpenJob,
    OpenRefusal,
    SealJob,
    open_many,
    parse_unverified_header,
    seal_many,
)

KEY, NONCE, NAME, LAYOUT = b"k" * 32, b"n" * 24, b"a" * 64, b"l" * 32
BLOCK = bytes(range(256)) * 4
NOW = 1_000_000
LIFETIME = Lifetime(oldest_unix_s=NOW - 100, newest_unix_s=NOW + 10)


def sealer(key: bytes = KEY, epoch: int = 3) -> BlockSealer:
    return BlockSealer(SealKey(key), epoch=epoch)


def sealed(created: int = NOW, **changes: bytes) -> bytearray:
    out = bytearray(len(BLOCK) + OVERHEAD_BYTES)
    values = {"name": NAME, "layout_digest": LAYOUT, "nonce": NONCE} | changes
    sealer().seal_into(BLOCK, memoryview(out), created_unix_s=created, **values)
    return out


def try_open(
    data: bytes | bytearray,
    *,
    by: BlockSealer | None = None,
    name: bytes = NAME,
    layout_digest: bytes = LAYOUT,
    length: int = len(BLOCK),
) -> bytes | str | None:
    out = bytearray(b"\xaa" * length)
    try:
        (by or sealer()).open_into(
            data, memoryview(out), name=name, layout_digest=layout_digest, lifetime=LIFETIME
        )
    except OpenError as exc:
        assert str(exc) == "The sealed block does not open."
        assert exc.hint is None
        assert out == bytes(length)
        return exc.reason
    return bytes(out)


def test_what_was_sealed_opens() -> None:
    assert try_open(sealed()) == BLOCK


def test_header_says_what_it_should_and_no_more() -> None:
    header = parse_unverified_header(sealed())
    assert (header.epoch, header.created_unix_s, header.plain_bytes) == (3, NOW, len(BLOCK))
    assert header.to_bytes() == bytes(sealed()[:64])
    assert BLOCK[:32] not in bytes(sealed())


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (lambda d: d[:-1], OpenRefusal.LENGTH),
        (lambda d: d + b"\0", OpenRefusal.LENGTH),
        (lambda d: d[:OVERHEAD_BYTES], OpenRefusal.LENGTH),
        (lambda d: d[: OVERHEAD_BYTES - 1], OpenRefusal.TOO_SHORT),
        (lambda d: b"", OpenRefusal.TOO_SHORT),
        (lambda d: b"kwsc" + d[4:], OpenRefusal.NOT_A_BLOCK),
        (lambda d: d[:4] + b"\2" + d[5:], OpenRefusal.VERSION),
        (lambda d: d[:4] + b"\0" + d[5:], OpenRefusal.VERSION),
        (lambda d: d[:5] + b"\0" + d[6:], OpenRefusal.SUITE),
        (lambda d: d[:5] + b"\2" + d[6:], OpenRefusal.SUITE),
        (lambda d: d[:7] + b"\1" + d[8:], OpenRefusal.RESERVED),
        (lambda d: d[:8] + bytes(8) + d[16:], OpenRefusal.KEY),
        (lambda d: d[:23] + b"\4" + d[24:], OpenRefusal.EPOCH),
        (lambda d: d[:24] + (NOW - 101).to_bytes(8, "big") + d[32:], OpenRefusal.EXPIRED),
        (lambda d: d[:24] + (NOW + 11).to_bytes(8, "big") + d[32:], OpenRefusal.FROM_THE_FUTURE),
        (lambda d: d[:24] + (NOW - 1).to_bytes(8, "big") + d[32:], OpenRefusal.NOT_AUTHENTIC),
        (lambda d: d[:32] + bytes(8) + d[40:], OpenRefusal.LENGTH),
        (lambda d: d[:40] + bytes(24) + d[64:], OpenRefusal.NOT_AUTHENTIC),
        (lambda d: d[:64] + bytes(len(BLOCK)) + d[-16:], OpenRefusal.NOT_AUTHENTIC),
        (lambda d: d[:-16] + bytes(16), OpenRefusal.NOT_AUTHENTIC),
    ],
)
def test_changed_bytes_do_not_open(
    what: Callable[[bytes], bytes], reason: OpenRefusal
) -> None:  # fmt: skip
    assert try_open(what(bytes(sealed()))) == reason


def test_moved_blocks_do_not_open() -> None:
    assert try_open(sealed(), name=b"b" * 64) == OpenRefusal.NOT_AUTHENTIC
    assert try_open(sealed(), layout_digest=b"m" * 32) == OpenRefusal.NOT_AUTHENTIC
    assert try_open(sealed(), by=sealer(epoch=4)) == OpenRefusal.EPOCH
    assert try_open(sealed(), by=sealer(key=b"j" * 32)) == OpenRefusal.KEY
    assert try_open(sealed(), length=len(BLOCK) - 1) == OpenRefusal.LENGTH


def test_age_is_what_was_sealed_not_what_the_store_says() -> None:
    assert try_open(sealed(created=NOW - 100)) == BLOCK
    assert try_open(sealed(created=NOW - 101)) == OpenRefusal.EXPIRED
    assert try_open(sealed(created=NOW + 10)) == BLOCK
    assert try_open(sealed(created=NOW + 11)) == OpenRefusal.FROM_THE_FUTURE


@given(st.integers(0, (len(BLOCK) + OVERHEAD_BYTES) * 8 - 1))
def test_no_flipped_bit_opens(bit: int) -> None:
    data = sealed()
    data[bit // 8] ^= 1 << bit % 8
    assert isinstance(try_open(data), str)


@given(st.binary(max_size=300))
def test_no_foreign_bytes_open_or_crash(data: bytes) -> None:
    assert isinstance(try_open(data), str)


@pytest.mark.parametrize("with_threads", [False, True])
def test_batches_judge_each_block_for_itself(*, with_threads: bool) -> None:
    size, count = 400_000, 5
    blocks = [bytes([number]) * size for number in range(count)]
    seals = [memoryview(bytearray(size + OVERHEAD_BYTES)) for _ in blocks]
    opened = [memoryview(bytearray(size)) for _ in blocks]
    names = [bytes([number]) * 64 for number in range(count)]
    ours = sealer()
    with ThreadPoolExecutor(2) as pool:
        executor = pool if with_threads else None
        seal_many(
            [
                SealJob(
                    sealer=ours, block=block, out=out, name=name, layout_digest=LAYOUT,
                    nonce=name[:24],
                )
                for block, out, name in zip(blocks, seals, names, strict=True)
            ],
            created_unix_s=NOW,
            executor=executor,
        )  # fmt: skip
        seals[1][100] ^= 1
        names[3] = names[4]
        outcome = open_many(
            [
                OpenJob(sealer=ours, sealed=data, out=out, name=name, layout_digest=LAYOUT)
                for data, out, name in zip(seals, opened, names, strict=True)
            ],
            lifetime=LIFETIME,
            executor=executor,
        )
    bad = OpenRefusal.NOT_AUTHENTIC
    assert outcome == [None, bad, None, bad, None]
    for number, out in enumerate(opened):
        assert bytes(out) == (bytes(size) if number in (1, 3) else blocks[number])


def test_wrong_lengths_of_memory_are_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="longer than its plaintext"):
        sealer().seal_into(
            BLOCK,
            memoryview(bytearray(len(BLOCK))),
            name=NAME,
            layout_digest=LAYOUT,
            created_unix_s=NOW,
            nonce=NONCE,
        )


def test_a_sealer_does_not_show_or_hand_out_its_key() -> None:
    assert repr(sealer()) == "<BlockSealer epoch=3>"
    with pytest.raises(TypeError):
        pickle.dumps(sealer())
