"""Identity of a block: a hash over scope, model and everything before it. Pure functions.

Source: docs/spec/block-identity-v1.md, section 5.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from kvward.canonical import Field, encode

_ROOT = "kvward/chain-root/v1"
_LINK = "kvward/chain-link/v1"
_RESIDENT = "kvward/resident-block/v1"


def derive_chain_root(*, manifest_digest: bytes, scope: str | None) -> bytes:
    """Return the parent of a prompt's first block, 32 bytes.

    Args:
        manifest_digest: Digest of the exact model.
        scope: The scope's token, for names inside an engine; None, never equal to any text, where
            something else binds the scope, as the key of a stored block's name does.
    """
    return hashlib.sha256(encode(_ROOT, manifest_digest, scope)).digest()


def derive_chain_link(parent: bytes, token_ids: Sequence[int], *, extras: Sequence[Field]) -> bytes:
    """Return the hash of a block, 32 bytes, given its parent's.

    Args:
        parent: Hash of the block before it, or the chain root.
        token_ids: The block's tokens, each 0 <= id < 2^32.
        extras: What it holds besides tokens, from `extras_of_block`; empty for text.
    """
    packed = struct.pack(f">{len(token_ids)}I", *token_ids)
    return hashlib.sha256(encode(_LINK, parent, packed, list(extras))).digest()


def derive_resident_hash(chain_hash: bytes, *, scope: str) -> bytes:
    """Return the name of a block inside an engine that keeps one index for everybody, 32 bytes.

    Args:
        chain_hash: Of the block, in a chain without a scope. It commits to everything before it.
        scope: Token of the scope that this block belongs to, which may differ from that of the
            blocks before it; or a random text that nobody else has.
    """
    return hashlib.sha256(encode(_RESIDENT, scope, chain_hash)).digest()
