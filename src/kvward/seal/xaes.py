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

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC

from kvward.errors import OpenError

KEY_BYTES = 32
NONCE_BYTES = 24
TAG_BYTES = 16
_DERIVING_BYTES = 12


def seal(key: bytes, nonce: bytes, plaintext: bytes, associated_data: bytes) -> bytes:
    """Encrypt and authenticate.

    Args:
        key: 32 bytes. [secret]
        nonce: 24 bytes, never used twice with one key; random ones may be.
        plaintext: Any length that AES-GCM takes. [secret]
        associated_data: Authenticated, not encrypted.
    Returns:
        Ciphertext and tag, 16 bytes longer than the plaintext.
    Raises:
        ValueError: Key or nonce has the wrong length.
    """
    return _derive_cipher(key, nonce).encrypt(nonce[_DERIVING_BYTES:], plaintext, associated_data)


def open_sealed(key: bytes, nonce: bytes, ciphertext: bytes, associated_data: bytes) -> bytes:
    """Authenticate and decrypt.

    Args:
        ciphertext: As `seal` returned it. [untrusted]
    Raises:
        OpenError: Anything does not fit: key, nonce, ciphertext, tag or associated data. Which of
            them is not said.
        ValueError: Key or nonce has the wrong length.
    """
    cipher = _derive_cipher(key, nonce)
    try:
        return cipher.decrypt(nonce[_DERIVING_BYTES:], ciphertext, associated_data)
    except InvalidTag:
        raise OpenError("The sealed bytes do not open.") from None


def _derive_cipher(key: bytes, nonce: bytes) -> AESGCM:
    if len(key) != KEY_BYTES or len(nonce) != NONCE_BYTES:
        raise ValueError(f"XAES-256-GCM takes {KEY_BYTES}-byte keys and {NONCE_BYTES}-byte nonces.")
    halves = []
    for counter in (1, 2):
        mac = CMAC(AES(key))
        mac.update(bytes([0, counter, ord("X"), 0]) + nonce[:_DERIVING_BYTES])
        halves.append(mac.finalize())
    return AESGCM(b"".join(halves))
