"""An operator's signed word that state of one model manifest may be read as another's.

An upgrade of an engine changes the manifest, and so drops what is stored. Where the operator has
checked that the new version writes the same state, a list says so, and names the old manifest's
blocks again. It is a JSON document with an Ed25519 signature; unsigned, it says nothing.

Source: docs/spec/block-identity-v1.md, section 6.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from kvward.canonical import Field, encode
from kvward.errors import ConfigError

_LABEL = "kvward/manifest-equivalence/v1"
_FORMAT = "kvward-manifest-equivalence-1"
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalences:
    """Which manifest's blocks a manifest may read and write, by digest."""

    read_as: Mapping[bytes, bytes]

    def resolve(self, manifest_digest: bytes) -> bytes:
        """Return the digest to use for a model: its own, or the one that it is declared to equal.

        One step only: a list that needs two was refused.
        """
        return self.read_as.get(manifest_digest, manifest_digest)


def sign_equivalences(read_as: Mapping[bytes, bytes], seed: bytes) -> str:
    """Return a list as JSON text, signed.

    Args:
        read_as: From the digest of a model to the digest of the model whose state it may read.
        seed: The operator's 32-byte Ed25519 seed. [secret]
    Raises:
        ConfigError: The list needs more than one step, or a digest does not have 32 bytes.
    """
    _check(read_as)
    pairs = sorted((a.hex(), b.hex()) for a, b in read_as.items())
    signature = Ed25519PrivateKey.from_private_bytes(seed).sign(_signed_bytes(pairs))
    document = {
        "format": _FORMAT,
        "read_as": dict(pairs),
        "signature": base64.b64encode(signature).decode(),
    }
    return json.dumps(document, indent=1)


def verify_equivalences(text: str, *, public_key: bytes) -> Equivalences:
    """Check a list and return what it says.

    Args:
        text: JSON. [untrusted]
        public_key: The operator's, 32 bytes, from the policy.
    Raises:
        ConfigError: It was not signed by this key, was changed, or needs more than one step.
    """
    try:
        document: Any = json.loads(text)
        if set(document) != {"format", "read_as", "signature"} or document["format"] != _FORMAT:
            raise ConfigError("This is not a list of equal manifests of this version.")
        pairs = sorted((str(a), str(b)) for a, b in document["read_as"].items())
        signature = base64.b64decode(document["signature"], validate=True)
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, _signed_bytes(pairs))
        read_as = {bytes.fromhex(a): bytes.fromhex(b) for a, b in pairs}
        if [(a.hex(), b.hex()) for a, b in sorted(read_as.items())] != pairs:
            raise ConfigError("A digest in the list of equal manifests is not spelled as it is.")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise ConfigError("The list of equal manifests is not in its form.") from None
    except InvalidSignature:
        raise ConfigError(
            "The list of equal manifests was changed, or signed by another key.",
            hint="Sign it again, or correct the key in the policy. Until then nothing is equal.",
        ) from None
    _check(read_as)
    return Equivalences(read_as=read_as)


def _signed_bytes(pairs: list[tuple[str, str]]) -> bytes:
    fields: list[Field] = [[a, b] for a, b in pairs]
    return encode(_LABEL, _FORMAT, fields)


def _check(read_as: Mapping[bytes, bytes]) -> None:
    for digest in (*read_as, *read_as.values()):
        if len(digest) != _DIGEST_BYTES:
            raise ConfigError(f"A manifest digest has {_DIGEST_BYTES} bytes.")
    if set(read_as) & set(read_as.values()):
        raise ConfigError(
            "The list of equal manifests needs more than one step.",
            hint="Let every manifest name the one whose state is stored.",
        )
