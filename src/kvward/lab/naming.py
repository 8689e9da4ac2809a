"""Names of blocks: what of a request decides under which names its state is found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvward.blocks.chain import derive_chain_link, derive_chain_root
from kvward.lab.behaviour import Behaviour, Slip

_SHORT_BYTES = 2


class NameChain:
    """Names of the full blocks of one request, each computed once.

    Args:
        root: Where the chain begins, 32 bytes.
        tokens: Of the request; grows while it generates, and is never changed otherwise.
        num_bytes: How much of each hash is the name; the chain itself goes on in full width.
    """

    def __init__(
        self, root: bytes, tokens: Sequence[int], *, block_tokens: int, num_bytes: int = 32
    ) -> None:
        self._root = root
        self._tokens = tokens
        self._block_tokens = block_tokens
        self._num_bytes = num_bytes
        self._hashes: list[bytes] = []

    def name(self, number: int) -> bytes:
        """Return the name of a full block."""
        while len(self._hashes) <= number:
            begin = len(self._hashes) * self._block_tokens
            parent = self._hashes[-1] if self._hashes else self._root
            tokens = self._tokens[begin : begin + self._block_tokens]
            # Tokens are all that the lab's model takes in.
            self._hashes.append(derive_chain_link(parent, tokens, extras=()))
        return self._hashes[number][: self._num_bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNames:
    """The names of one request's blocks in the places where they may lie.

    Attributes:
        resident: In the engine's memory.
        offload: In the host tier; the same in the sound engine.
        content: Without a scope, for whoever binds that by other means.
    """

    resident: NameChain
    offload: NameChain
    content: NameChain


def name_blocks(
    tokens: Sequence[int],
    *,
    scope: str | None,
    manifest_digest: bytes,
    block_tokens: int,
    behaviour: Behaviour,
) -> BlockNames:
    """Return how the blocks of a request are called.

    Args:
        tokens: Of the request, see `NameChain`.
        scope: Under which its blocks are found; None is a scope of its own.
        manifest_digest: Names the exact model.
    """
    num_bytes = _SHORT_BYTES if behaviour.slips(Slip.SHORT_BLOCK_HASH) else 32

    def chain(scope: str | None) -> NameChain:
        root = derive_chain_root(manifest_digest=manifest_digest, scope=scope)
        return NameChain(root, tokens, block_tokens=block_tokens, num_bytes=num_bytes)

    everybody = behaviour.slips(Slip.SCOPE_MISSING) or behaviour.slips(Slip.HIDDEN_SHARING)
    resident = chain(None if everybody else scope)
    offload = chain(None) if behaviour.slips(Slip.SCOPE_MISSING_OFFLOAD) else resident
    return BlockNames(resident=resident, offload=offload, content=chain(None))
