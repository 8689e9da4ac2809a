"""Names of a request's blocks: inside the engine, and in the sealed store.

One chain without a scope commits to model, tokens and other inputs. A block's name inside the
engine is that hash under the scope which the block belongs to; its name in a store is derived from
the same hash with the scope's key. The scope changes at span boundaries and only ever narrows.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvward.blocks.chain import derive_chain_link, derive_chain_root, derive_resident_hash
from kvward.blocks.inputs import PromptInput, extras_of_block
from kvward.canonical import Field
from kvward.scope.owner import ScopeOwner


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScope:
    """Where a run of blocks belongs.

    Attributes:
        scope: Token, or a random text that nobody else has.
        owner: Whose store it is kept in; None keeps nothing.
        num_blocks: How many leading blocks belong to it or to a wider scope; None for all others.
    """

    scope: str
    owner: ScopeOwner | None
    num_blocks: int | None


class RequestNames:
    """The names of one request's full blocks, as far as its tokens are known.

    Args:
        manifest_digest: Of the exact model, adapter included, 32 bytes.
        block_tokens: Tokens of a block.
        scopes: From wide to narrow; the last takes all blocks that the others leave.
        inputs: What the prompt holds besides tokens, from `check_inputs`.
    """

    def __init__(
        self,
        *,
        manifest_digest: bytes,
        block_tokens: int,
        scopes: Sequence[BlockScope],
        inputs: Sequence[PromptInput],
    ) -> None:
        self._root = derive_chain_root(manifest_digest=manifest_digest, scope=None)
        self._block_tokens = block_tokens
        self._scopes = tuple(scopes)
        self._inputs = tuple(inputs)
        self._chain: list[bytes] = []

    @property
    def num_blocks(self) -> int:
        """Return how many blocks have a name so far."""
        return len(self._chain)

    def extend(self, token_ids: Sequence[int], *, from_block: int) -> list[bytes]:
        """Name further full blocks, and return the engine's names of all from one on.

        Args:
            token_ids: Of the whole request so far.
            from_block: Number of the first block whose name is wanted.
        """
        for number in range(len(self._chain), len(token_ids) // self._block_tokens):
            begin = number * self._block_tokens
            parent = self._chain[-1] if self._chain else self._root
            extras = extras_of_block(
                self._inputs, first_token=begin, block_tokens=self._block_tokens
            )
            tokens = token_ids[begin : begin + self._block_tokens]
            self._chain.append(_link(parent, tokens, extras))
        return [self.resident_hash(number) for number in range(from_block, len(self._chain))]

    def chain_hash(self, number: int) -> bytes:
        """Return the hash of a block in the chain without a scope."""
        return self._chain[number]

    def resident_hash(self, number: int) -> bytes:
        """Return the name of a block inside the engine."""
        return derive_resident_hash(self._chain[number], scope=self.scope_of(number).scope)

    def scope_of(self, number: int) -> BlockScope:
        """Return where a block belongs."""
        for scope in self._scopes:
            if scope.num_blocks is None or number < scope.num_blocks:
                return scope
        raise AssertionError("The last scope takes all blocks.")

    def narrow(self, scope: str, *, to_blocks: int) -> bool:
        """Leave a wide scope fewer blocks than it had; the next narrower one takes them.

        Returns:
            Whether anything changed; then every name from there on is another.
        """
        narrowed = tuple(
            replace(given, num_blocks=min(given.num_blocks, to_blocks))
            if given.scope == scope and given.num_blocks is not None
            else given
            for given in self._scopes
        )
        changed = narrowed != self._scopes
        self._scopes = narrowed
        return changed


def _link(parent: bytes, tokens: Sequence[int], extras: Sequence[Field]) -> bytes:
    try:
        return derive_chain_link(parent, tokens, extras=extras)
    except (struct.error, TypeError):
        # No model has such tokens; nobody else has such a block, and the engine goes on.
        return secrets.token_bytes(32)
