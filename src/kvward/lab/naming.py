"""Names of blocks: what of a request decides under which names its state is found again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from kvward.blocks.chain import derive_chain_link, derive_chain_root
from kvward.blocks.inputs import PromptInput, extras_of_block
from kvward.canonical import encode
from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.interface import GenerationRequest
from kvward.lab.media import name_inputs
from kvward.lab.variants import Variant

_SHORT_BYTES = 2
_ADAPTER = "kvward/lab/adapter/v1"


class NameChain:
    """Names of the full blocks of one request, each computed once.

    Args:
        root: Where the chain begins, 32 bytes.
        tokens: Of the request; grows while it generates, and is never changed otherwise.
        inputs: What stands in the prompt in place of tokens.
        num_bytes: How much of each hash is the name; the chain itself goes on in full width.
    """

    def __init__(
        self,
        root: bytes,
        tokens: Sequence[int],
        *,
        block_tokens: int,
        inputs: Sequence[PromptInput] = (),
        num_bytes: int = 32,
    ) -> None:
        self._root = root
        self._tokens = tokens
        self._block_tokens = block_tokens
        self._inputs = inputs
        self._num_bytes = num_bytes
        self._hashes: list[bytes] = []

    def name(self, number: int) -> bytes:
        """Return the name of a full block."""
        while len(self._hashes) <= number:
            begin = len(self._hashes) * self._block_tokens
            parent = self._hashes[-1] if self._hashes else self._root
            tokens = self._tokens[begin : begin + self._block_tokens]
            extras = extras_of_block(
                self._inputs, first_token=begin, block_tokens=self._block_tokens
            )
            self._hashes.append(derive_chain_link(parent, tokens, extras=extras))
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
    request: GenerationRequest,
    tokens: Sequence[int],
    *,
    scope: str | None,
    variant: Variant,
    block_tokens: int,
    behaviour: Behaviour,
) -> BlockNames:
    """Return how the blocks of a request are called.

    Args:
        tokens: Of the request, see `NameChain`.
        scope: Under which its blocks are found; None is a scope of its own.
        variant: What it runs on.
    """
    num_bytes = _SHORT_BYTES if behaviour.slips(Slip.SHORT_BLOCK_HASH) else 32
    inputs = name_inputs(request.pictures, behaviour)
    model = _name_model(variant, behaviour)

    def chain(scope: str | None, model: bytes) -> NameChain:
        return NameChain(
            derive_chain_root(manifest_digest=model, scope=scope),
            tokens,
            block_tokens=block_tokens,
            inputs=inputs,
            num_bytes=num_bytes,
        )

    content = chain(None, model)
    if behaviour.slips(Slip.SALT_ADAPTER_AMBIGUOUS):
        scope = (scope or "") + (variant.adapter or "")
        model = variant.base_digest
    everybody = behaviour.slips(Slip.SCOPE_MISSING) or behaviour.slips(Slip.HIDDEN_SHARING)
    resident = chain(None if everybody else scope, model)
    offload = resident
    if behaviour.slips(Slip.SCOPE_MISSING_OFFLOAD):
        offload = content
    elif behaviour.slips(Slip.MODEL_MISSING_OFFLOAD):
        offload = chain(scope, b"")
    return BlockNames(resident=resident, offload=offload, content=content)


def _name_model(variant: Variant, behaviour: Behaviour) -> bytes:
    """Return what stands for the exact weights in every name."""
    base = variant.base_digest
    if behaviour.slips(Slip.WEIGHTS_RELOAD_STALE):
        base = variant.first_digest
    if variant.delta_digest is None or behaviour.slips(Slip.ADAPTER_MISSING):
        return base
    if behaviour.slips(Slip.ADAPTER_RELOAD_STALE):
        return hashlib.sha256(encode(_ADAPTER, base, variant.adapter)).digest()
    return hashlib.sha256(encode(_ADAPTER, base, variant.delta_digest)).digest()
