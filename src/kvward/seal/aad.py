"""Everything that a sealed block binds and does not encrypt. Built here only.

Position, model, parent and tokens are bound through the name, which commits to the whole prefix;
so state can be checked and sealed again without a prompt.

Source: docs/spec/sealed-block-v1.md, section 3.
"""

from __future__ import annotations

from kvward.canonical import encode
from kvward.seal.header import BOUND_BYTES, Suite

_LABELS = {Suite.XAES_256_GCM: "kvward/sealed-block/v1/xaes-256-gcm"}


def build_aad(suite: Suite, header: bytes, *, name: bytes, layout_digest: bytes) -> bytes:
    """Return the associated data of a block.

    Args:
        header: The 64 header bytes; all but the nonce go in, which the cipher binds.
        name: Where the block lies: tenant bucket, scope bucket and name, in this order.
        layout_digest: Of the layout that the reader expects, 32 bytes.
    """
    return encode(_LABELS[suite], header[:BOUND_BYTES], name, layout_digest)
