"""Sealed bytes that somebody else can still write to while they are opened.

No backend of today answers with such memory. One that answers with a mapped file or with a segment
that a store shares would: `open_into` takes any buffer, and calls it untrusted.
"""

from __future__ import annotations

import pytest

from kvward.errors import OpenError
from kvward.scope import SealKey
from kvward.seal import OVERHEAD_BYTES, BlockSealer, Header, Lifetime

NAME, LAYOUT, BLOCK = b"a" * 64, b"l" * 32, bytes(range(256))
NOW = 1_000_000
LIFETIME = Lifetime(oldest_unix_s=NOW - 100, newest_unix_s=NOW + 10)


@pytest.mark.parametrize("created", [NOW - 101, NOW + 11])
def test_the_header_that_was_judged_is_the_header_that_is_authenticated(
    created: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealer = BlockSealer(SealKey(b"k" * 32), epoch=3)
    memory = bytearray(len(BLOCK) + OVERHEAD_BYTES)
    sealer.seal_into(
        BLOCK,
        memoryview(memory),
        name=NAME,
        layout_digest=LAYOUT,
        created_unix_s=created,
        nonce=b"n" * 24,
    )
    genuine = bytes(memory)
    memory[24:32] = NOW.to_bytes(8, "big")
    check = BlockSealer._check

    def check_slowly(
        self: BlockSealer, sealed: memoryview, plain_bytes: int, lifetime: Lifetime
    ) -> Header:
        header = check(self, sealed, plain_bytes, lifetime)
        # Here another thread, or another process, writes the true time back.
        memory[:] = genuine
        return header

    monkeypatch.setattr(BlockSealer, "_check", check_slowly)
    out = bytearray(len(BLOCK))
    with pytest.raises(OpenError):
        sealer.open_into(
            memory, memoryview(out), name=NAME, layout_digest=LAYOUT, lifetime=LIFETIME
        )
    assert not any(out)
