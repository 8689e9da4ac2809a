"""Seal and open blocks. Bytes in, bytes out: no clock, no randomness, no store.

Source: docs/spec/sealed-block-v1.md, sections 4 and 5.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Never

from kvward.canonical import encode
from kvward.errors import OpenError
from kvward.scope import SealKey
from kvward.seal.aad import build_aad
from kvward.seal.header import (
    HEADER_BYTES,
    KEY_ID_BYTES,
    MAX_PLAIN_BYTES,
    OVERHEAD_BYTES,
    Header,
    OpenRefusal,
    Suite,
    parse_unverified_header,
    refusal,
)
from kvward.seal.xaes import XAES256GCM, Buffer

_KEY_ID = "kvward/seal-key-id/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """From when to when a block must have been sealed to be read now.

    Attributes:
        oldest_unix_s: Blocks created before it are past their maximum age.
        newest_unix_s: Blocks created after it are from a clock that nobody here has.
    """

    oldest_unix_s: int
    newest_unix_s: int


class BlockSealer:
    """Seals and opens the blocks of exactly one scope in one epoch. May be used from threads.

    Args:
        key: The scope's. [secret]
        epoch: The key's.
    """

    __slots__ = ("_cipher", "_epoch", "_key_id")

    def __init__(self, key: SealKey, *, epoch: int) -> None:
        self._cipher = XAES256GCM(key.reveal())
        self._epoch = epoch
        self._key_id = derive_key_id(key)

    @property
    def epoch(self) -> int:
        """Return the epoch of the key."""
        return self._epoch

    def seal_into(
        self,
        block: Buffer,
        out: memoryview,
        *,
        name: bytes,
        layout_digest: bytes,
        created_unix_s: int,
        nonce: bytes,
    ) -> None:
        """Seal a block into memory of the caller's, so that only the same scope can open it there.

        Confidentiality and integrity of the bytes, and of their identity. Length, access times and
        the fact of storage are not hidden.

        Args:
            block: Bytes of one part of a block. [secret]
            out: Writable bytes, exactly `OVERHEAD_BYTES` longer.
            name: Where it will lie; see `build_aad`.
            layout_digest: Of the block's layout, 32 bytes.
            created_unix_s: Now.
            nonce: 24 random bytes, never used before.
        Raises:
            ValueError: A length does not fit.
        Source:
            docs/spec/sealed-block-v1.md, section 4
        """
        block, out = memoryview(block).cast("B"), out.cast("B")
        if len(block) > MAX_PLAIN_BYTES or len(out) != len(block) + OVERHEAD_BYTES:
            raise ValueError(f"A sealed block is {OVERHEAD_BYTES} bytes longer than its plaintext.")
        header = Header(
            suite=Suite.XAES_256_GCM,
            key_id=self._key_id,
            epoch=self._epoch,
            created_unix_s=created_unix_s,
            plain_bytes=len(block),
            nonce=nonce,
        ).to_bytes()
        aad = build_aad(Suite.XAES_256_GCM, header, name=name, layout_digest=layout_digest)
        out[:HEADER_BYTES] = header
        self._cipher.seal_into(nonce, block, aad, out[HEADER_BYTES:])

    def open_into(
        self,
        sealed: Buffer,
        out: memoryview,
        *,
        name: bytes,
        layout_digest: bytes,
        lifetime: Lifetime,
    ) -> None:
        """Open a sealed block into private memory of the caller's, or wipe it.

        Args:
            sealed: Any bytes. [untrusted]
            out: Writable contiguous memory of as many bytes as the layout says. Never an engine's
                pages or shared memory: while it works, unauthenticated plaintext lies there.
            name: Where it was found; see `build_aad`.
            layout_digest: Of the layout that the reader expects, 32 bytes.
            lifetime: Which creation times are accepted.
        Raises:
            OpenError: It is not authentic under this key, name, layout, epoch and time. One
                message for every reason.
        Security:
            On failure every byte of `out` is zero. On success it holds the plaintext.
        Source:
            docs/spec/sealed-block-v1.md, section 5
        """
        out = out.cast("B")
        try:
            view = memoryview(sealed).cast("B")
            header = self._check(view, len(out), lifetime)
            # (7) What the header said so far was a claim. It is authentic once this returns.
            # SECURITY: bound is what was judged, not what the memory holds by now.
            judged = header.to_bytes()
            aad = build_aad(header.suite, judged, name=name, layout_digest=layout_digest)
            try:
                self._cipher.open_into(header.nonce, view[HEADER_BYTES:], aad, out)
            except OpenError:
                raise refusal(OpenRefusal.NOT_AUTHENTIC) from None
        except OpenError:
            # SECURITY: the library leaves rejected plaintext in the buffer.
            out[:] = bytes(len(out))
            raise

    def _check(self, sealed: memoryview, plain_bytes: int, lifetime: Lifetime) -> Header:
        """Refuse early what cannot be authentic for this reader."""
        # (1) magic, (2) version and suite, (3) reserved bytes, (4) length as it says
        header = parse_unverified_header(sealed)
        # (4) length as the reader's layout says
        if header.plain_bytes != plain_bytes:
            raise refusal(OpenRefusal.LENGTH)
        # (5) key and epoch
        if header.epoch != self._epoch:
            raise refusal(OpenRefusal.EPOCH)
        if not hmac.compare_digest(header.key_id, self._key_id):
            raise refusal(OpenRefusal.KEY)
        # (6) age
        if header.created_unix_s < lifetime.oldest_unix_s:
            raise refusal(OpenRefusal.EXPIRED)
        if header.created_unix_s > lifetime.newest_unix_s:
            raise refusal(OpenRefusal.FROM_THE_FUTURE)
        return header

    def __repr__(self) -> str:
        return f"<BlockSealer epoch={self._epoch}>"

    def __reduce__(self) -> Never:
        raise TypeError("A sealer holds its key and cannot be pickled or copied.")


def derive_key_id(key: SealKey) -> bytes:
    """Derive the 8 bytes by which a header names its key."""
    return hmac.digest(key.reveal(), encode(_KEY_ID), "sha256")[:KEY_ID_BYTES]
