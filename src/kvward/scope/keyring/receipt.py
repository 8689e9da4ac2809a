"""Receipts of erasures: what was destroyed, from when on it holds, signed.

A receipt is a JSON object and an Ed25519 signature over its canonical encoding, so that whoever
has the deployment's public receipt key can check it without a keyring.

Source: docs/spec/keyring-v1.md, section 6.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from kvward.canonical import encode
from kvward.errors import ReceiptError

_LABEL = "kvward/erasure-receipt/v1"
FORMAT = "kvward-erasure-receipt-1"
_SIGNATURE = "signature"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReceipt:
    """Says that keys were destroyed.

    Attributes:
        format: `FORMAT`.
        deployment: Name of the installation.
        tenant_id: Pseudonym, 48 hexadecimal digits.
        scope_id: Pseudonym, 48 hexadecimal digits; empty when the whole tenant was erased.
        erased_unix_s: When the keys were destroyed.
        effective_unix_s: From then on nothing of it is served or opened by any replica.
        last_epoch: The tombstone: no key of this epoch or an earlier one is made again.
        keys_destroyed: Wrapped keys that were deleted.
        root_id: Root key of that time, 32 hexadecimal digits. Backups of the keyring can undo the
            erasure for as long as this root key exists.
    """

    format: str
    deployment: str
    tenant_id: str
    scope_id: str
    erased_unix_s: int
    effective_unix_s: int
    last_epoch: int
    keys_destroyed: int
    root_id: str

    def signed_bytes(self) -> bytes:
        """Return what is signed."""
        return encode(_LABEL, *asdict(self).values())


def sign_receipt(receipt: ErasureReceipt, seed: bytes) -> str:
    """Return a receipt as JSON text, signed.

    Args:
        seed: The deployment's 32-byte receipt seed. [secret]
    """
    signature = Ed25519PrivateKey.from_private_bytes(seed).sign(receipt.signed_bytes())
    return json.dumps(asdict(receipt) | {_SIGNATURE: base64.b64encode(signature).decode()})


def derive_receipt_key(seed: bytes) -> str:
    """Return the public key that verifies receipts, in base64.

    Args:
        seed: The deployment's 32-byte receipt seed. [secret]
    """
    key = Ed25519PrivateKey.from_private_bytes(seed).public_key()
    return base64.b64encode(key.public_bytes_raw()).decode()


def verify_receipt(text: str, *, public_key: str) -> ErasureReceipt:
    """Check a receipt and return what it says.

    Args:
        text: JSON. [untrusted]
        public_key: In base64, from the operator by a way that is trusted.
    Raises:
        ReceiptError: It was not signed by this key, was changed, or is not a receipt.
    """
    try:
        values: Any = json.loads(text)
        if set(values) != {field.name for field in fields(ErasureReceipt)} | {_SIGNATURE}:
            raise ReceiptError("This is not an erasure receipt of this version.")
        signature = base64.b64decode(values.pop(_SIGNATURE), validate=True)
        receipt = ErasureReceipt(**values)
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
        key.verify(signature, receipt.signed_bytes())
    except (ValueError, TypeError, AttributeError):
        raise ReceiptError(
            "The receipt or the key is not in the form that it should have."
        ) from None
    except InvalidSignature:
        raise ReceiptError("The receipt was changed, or signed by another key.") from None
    if receipt.format != FORMAT:
        raise ReceiptError("This is not an erasure receipt of this version.")
    return receipt
