"""XAES-256-GCM: AES-256-GCM with 24-byte nonces, as C2SP specifies it, on `cryptography`.

One scope seals more blocks than random 12-byte nonces allow under one key. Here the first half of
a 24-byte nonce derives a key of its own for every message, the second half is that key's nonce, so
nonces may be drawn at random without counting.

```
L   = AES-256(key, 0^128)
K1  = L * 2 in GF(2^128), as CMAC makes its first subkey
M1  = 00 01 | "X" | 00 | nonce[0:12]
M2  = 00 02 | "X" | 00 | nonce[0:12]
Kx  = AES-256(key, M1 xor K1) | AES-256(key, M2 xor K1)
out = AES-256-GCM(Kx, nonce[12:24], plaintext, associated data)
```

Which is CMAC of two one-block messages: every primitive here is the library's.

Source: c2sp.org/XAES-256-GCM.
"""

from __future__ import annotations

from typing import Never

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC

from kvward.errors import OpenError

KEY_BYTES = 32
NONCE_BYTES = 24
TAG_BYTES = 16
_DERIVING_BYTES = 12
_FIRST, _SECOND = (bytes([0, counter, ord("X"), 0]) for counter in (1, 2))

Buffer = bytes | bytearray | memoryview


class XAES256GCM:
    """The cipher under one key. May be used from several threads.

    Args:
        key: 32 bytes. [secret]
    Raises:
        ValueError: The key has another length.
    """

    __slots__ = ("_mac",)

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"XAES-256-GCM takes keys of {KEY_BYTES} bytes.")
        self._mac = CMAC(AES(key))

    def seal_into(
        self, nonce: bytes, plaintext: Buffer, associated_data: bytes, out: Buffer
    ) -> None:
        """Encrypt and authenticate into memory of the caller's, without a copy in between.

        Args:
            nonce: 24 bytes, never used twice with one key; random ones may be.
            plaintext: Any length that AES-GCM takes. [secret]
            associated_data: Authenticated, not encrypted.
            out: Writable, exactly 16 bytes longer than the plaintext; takes ciphertext and tag.
        Raises:
            ValueError: Nonce or `out` has the wrong length.
        """
        self._cipher(nonce).encrypt_into(nonce[_DERIVING_BYTES:], plaintext, associated_data, out)

    def open_into(
        self, nonce: bytes, ciphertext: Buffer, associated_data: bytes, out: Buffer
    ) -> None:
        """Authenticate and decrypt into memory of the caller's, without a copy in between.

        Args:
            ciphertext: Ciphertext and tag. [untrusted]
            out: Writable, exactly 16 bytes shorter. On failure it may hold forged plaintext: the
                caller wipes it. `envelope` does.
        Raises:
            OpenError: Something does not fit: key, nonce, ciphertext, tag or associated data.
                Which of them is not said.
            ValueError: Nonce or `out` has the wrong length.
        """
        if len(ciphertext) < TAG_BYTES:
            raise OpenError("The sealed bytes do not open.")
        cipher = self._cipher(nonce)
        try:
            cipher.decrypt_into(nonce[_DERIVING_BYTES:], ciphertext, associated_data, out)
        except InvalidTag:
            raise OpenError("The sealed bytes do not open.") from None

    def _cipher(self, nonce: bytes) -> AESGCM:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"XAES-256-GCM takes nonces of {NONCE_BYTES} bytes.")
        halves = []
        for counter in (_FIRST, _SECOND):
            mac = self._mac.copy()
            mac.update(counter + nonce[:_DERIVING_BYTES])
            halves.append(mac.finalize())
        return AESGCM(b"".join(halves))

    def __repr__(self) -> str:
        return "<XAES256GCM>"

    def __reduce__(self) -> Never:
        raise TypeError("A cipher holds its key and cannot be pickled or copied.")
