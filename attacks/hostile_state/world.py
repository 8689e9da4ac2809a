"""What there is to attack: scopes, models, layouts and epochs, and every byte they sealed.

All scopes hold the same prompts, so that their chain hashes are equal and only keys and names keep
them apart; what lies under each hash differs from scope to scope, so that a mix-up shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from attacks.hostile_state.deployment import Clock, Deployment, Recorder
from kvward.blocks.chain import derive_chain_link, derive_chain_root
from kvward.blocks.layout import BlockLayout, Part
from kvward.blocks.manifest import (
    ModelManifest,
    ParallelShape,
    WeightsIdentity,
    WeightsKind,
)
from kvward.scope import RootKey
from kvward.scope.keyring import erase_scope, erase_tenant, rotate
from kvward.scope.owner import ScopeOwner
from kvward.store.backend import EntryName

ROTATED = ("anna", "bert", "cleo")
ERASED, FORGETFUL, RETIRED = "dora", "emil", "fern"
CONVERSATIONS = (0, 1, 2)
MODELS = ("1.0", "1.1")
NUM_POSITIONS = 8
_BLOCK_TOKENS = 4


def _layout(dtype: str, tensor_ranks: int, layers_of_stage: tuple[int, ...]) -> BlockLayout:
    return BlockLayout(
        order="layer,plane,token,head,channel",
        dtype=dtype,
        block_tokens=_BLOCK_TOKENS,
        num_planes=2,
        num_kv_heads=2,
        head_dim=8,
        tensor_ranks=tensor_ranks,
        layers_of_stage=layers_of_stage,
        num_kv_groups=1,
    )


# The first two differ in nothing that shows in a name or a length.
LAYOUTS: Mapping[str, BlockLayout] = {
    "half": _layout("float16", 1, (2,)),
    "brain": _layout("bfloat16", 1, (2,)),
    "ranks": _layout("float16", 2, (1, 1)),
}


class Identity(NamedTuple):
    """What a block is: everything that a mutation may get wrong."""

    deployment: str
    tenant: str
    conversation: int
    model: int
    layout: str
    position: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A block as its scope stored it.

    Attributes:
        chain_hash: 32 bytes.
        places: Which parts of the layout are meant, by number.
        plain: Of each part.
        names: Where each part lies.
        sealed: Of each part.
        older: An earlier sealing of each part, under the same names.
    """

    identity: Identity
    chain_hash: bytes
    places: tuple[int, ...]
    plain: tuple[bytes, ...]
    names: tuple[EntryName, ...]
    sealed: tuple[bytes, ...]
    older: tuple[bytes, ...]

    def only(self, place: int) -> Block:
        """Return what one rank sees of it."""
        here = slice(place, place + 1)
        return replace(
            self,
            places=self.places[here],
            plain=self.plain[here],
            names=self.names[here],
            sealed=self.sealed[here],
            older=self.older[here],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Blocks that one reader may ask for in one call, at most one for each chain hash and age."""

    deployment: str
    owner: ScopeOwner
    layout: str
    parts: tuple[Part, ...]
    blocks: Mapping[int, Sequence[Block]]


class World:
    """Everything sealed, as one who copied every store at every time has it.

    Args:
        folder: For the keyrings.
    """

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.deployments = {
            name: Deployment(folder / f"{name}.db", RootKey(name[:1].encode() * 32), self.clock)
            for name in ("here", "elsewhere")
        }
        self.blocks: dict[Identity, Block] = {}
        self.owners: dict[tuple[str, str, int, int], ScopeOwner] = {}
        tenants = (*ROTATED, ERASED, FORGETFUL, RETIRED)
        self._seal("here", tenants, generation=0)
        self._seal("elsewhere", ROTATED, generation=0)
        self._move_on()
        self._seal("here", tenants, generation=1)

    @cached_property
    def readers(self) -> list[Group]:
        """Readers with the newest tokens; they read the epochs before and after a rotation."""
        return [*self._groups(ROTATED, owner=1, generations=(0, 1))]

    @cached_property
    def ranks(self) -> list[Group]:
        """The same readers where each asks for the part of one rank."""
        return [
            replace(
                group,
                parts=(part,),
                blocks={
                    generation: [block.only(place) for block in blocks]
                    for generation, blocks in group.blocks.items()
                },
            )
            for group in self.readers
            for place, part in enumerate(group.parts)
            if len(group.parts) > 1
        ]

    @cached_property
    def alike(self) -> list[Group]:
        """Readers of the two layouts that nothing but their digest tells apart."""
        return [group for group in self.readers if group.layout in {"half", "brain"}]

    @cached_property
    def cut(self) -> list[Group]:
        """Readers of blocks that have several parts."""
        return [group for group in self.readers if len(group.parts) > 1]

    @cached_property
    def old_tokens(self) -> list[Group]:
        """Readers with tokens of before a rotation, which still read what is as old as they."""
        return [*self._groups(ROTATED, owner=0, generations=(0,))]

    @cached_property
    def ended(self) -> list[Group]:
        """Readers with tokens of before an erasure or a retirement."""
        return [*self._groups((ERASED, FORGETFUL, RETIRED), owner=0, generations=(0,))]

    @cached_property
    def begun_again(self) -> list[Group]:
        """Readers with tokens of after an erasure or a retirement."""
        return [*self._groups((ERASED, FORGETFUL, RETIRED), owner=1, generations=(1,))]

    @cached_property
    def elsewhere(self) -> list[Group]:
        """Readers of another deployment, with a root key of its own and the same tenants."""
        return [
            *self._groups(ROTATED, owner=0, generations=(0,), deployment="elsewhere"),
        ]

    def like(self, block: Block, **changes: Any) -> Block:
        """Return the same parts of the block whose identity differs in these fields."""
        other = self.blocks[block.identity._replace(**changes)]
        if other.places == block.places:
            return other
        return other.only(block.places[0] % len(other.places))

    def close(self) -> None:
        """Close the keyrings."""
        for deployment in self.deployments.values():
            deployment.keyring.database.close()

    def _groups(
        self,
        tenants: Sequence[str],
        *,
        owner: int,
        generations: Sequence[int],
        deployment: str = "here",
    ) -> Iterator[Group]:
        for tenant in tenants:
            for conversation in CONVERSATIONS:
                for label, layout in LAYOUTS.items():
                    yield Group(
                        deployment=deployment,
                        owner=self.owners[deployment, tenant, conversation, owner],
                        layout=label,
                        parts=layout.parts,
                        blocks={
                            generation: [
                                self.blocks[
                                    Identity(
                                        deployment, tenant, conversation, model, label, position,
                                        generation,
                                    )
                                ]
                                for model in range(len(MODELS))
                                for position in range(NUM_POSITIONS)
                            ]
                            for generation in generations
                        },
                    )  # fmt: skip

    def _move_on(self) -> None:
        keyring = self.deployments["here"].keyring
        for tenant in ROTATED:
            rotate(keyring, tenant, retire_old=False)
        erase_tenant(keyring, ERASED)
        for conversation in CONVERSATIONS:
            scope_id = self.owners["here", FORGETFUL, conversation, 0].scope_id
            erase_scope(keyring, FORGETFUL, scope_id)
        rotate(keyring, RETIRED, retire_old=True)

    def _seal(self, name: str, tenants: Sequence[str], *, generation: int) -> None:
        deployment = self.deployments[name]
        for tenant in tenants:
            for conversation in CONVERSATIONS:
                owner = deployment.owner(tenant, conversation)
                self.owners[name, tenant, conversation, generation] = owner
                for label in LAYOUTS:
                    whose = Identity(name, tenant, conversation, 0, label, 0, generation)
                    self._seal_blocks(deployment, owner, whose)

    def _seal_blocks(self, deployment: Deployment, owner: ScopeOwner, whose: Identity) -> None:
        layout = LAYOUTS[whose.layout]
        recorder = Recorder()
        store = deployment.store(recorder, layout).scope(owner)
        identities = [
            whose._replace(model=model, position=position)
            for model in range(len(MODELS))
            for position in range(NUM_POSITIONS)
        ]
        hashes = [_chain_hash(identity.model, identity.position) for identity in identities]
        plain = [_plain_parts(identity, layout) for identity in identities]
        wholes = [b"".join(parts) for parts in plain]
        older = recorder.save(store, hashes, wholes, layout.parts)
        newer = recorder.save(store, hashes, wholes, layout.parts)
        for place, identity in enumerate(identities):
            here = slice(place * len(layout.parts), (place + 1) * len(layout.parts))
            self.blocks[identity] = Block(
                identity=identity,
                chain_hash=hashes[place],
                places=tuple(range(len(layout.parts))),
                plain=plain[place],
                names=tuple(name for name, _ in newer[here]),
                sealed=tuple(data for _, data in newer[here]),
                older=tuple(data for _, data in older[here]),
            )


def _chain_hash(model: int, position: int) -> bytes:
    """Return the identity of a block of the one prompt that everybody has."""
    chain = derive_chain_root(manifest_digest=_manifest(MODELS[model]).digest(), scope=None)
    for place in range(position + 1):
        tokens = range(place * _BLOCK_TOKENS, (place + 1) * _BLOCK_TOKENS)
        chain = derive_chain_link(chain, tokens, extras=())
    return chain


def _manifest(engine_version: str) -> ModelManifest:
    return ModelManifest(
        weights=WeightsIdentity(kind=WeightsKind.FULL_HASH, digest=b"w" * 32),
        configuration=b"c" * 32,
        tokenizer=b"t" * 32,
        chat_template=None,
        dtype="float16",
        kv_dtype="float16",
        kv_scales=None,
        quantisation=None,
        attention="paged",
        block_tokens=_BLOCK_TOKENS,
        parallel=ParallelShape(tensor=1, pipeline=1, context=1, expert=1),
        engine="lab",
        engine_version=engine_version,
        adapter=None,
    )


def _plain_parts(identity: Identity, layout: BlockLayout) -> tuple[bytes, ...]:
    """Return a block's bytes, which are the same in both epochs: a hash commits to its content."""
    seed = repr(identity._replace(generation=0)).encode()
    return tuple(
        hashlib.shake_256(seed + repr(part).encode()).digest(layout.part_bytes(part))
        for part in layout.parts
    )
