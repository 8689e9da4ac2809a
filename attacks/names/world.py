"""What an attacker without keys has: every name and every byte of two sides, and guesses.

The sides are two tenants, or two conversations of one tenant, or one conversation before and after
a rotation.

Also given: what shows in an engine's logs (scope tokens, owner tags), the public digests of model
and layout, and for every guessed prompt its chain hashes and its plaintext, because the attacker
can run the same model. Not given: lengths or counts that differ, for those are not hidden.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attacks.hostile_state.deployment import LIMITS, SEALED_UNIX_S, Recorder
from kvward.blocks.chain import derive_chain_link, derive_chain_root
from kvward.blocks.layout import BlockLayout
from kvward.events import EventCounter
from kvward.scope import RootKey, Scope, ScopeIssuer
from kvward.scope.derive import (
    derive_name_key,
    derive_scope_bucket,
    derive_tenant_bucket,
    derive_tenant_key,
)
from kvward.scope.keyring import ScopeKeys
from kvward.scope.keys import DeploymentKey, SealKey
from kvward.scope.owner import ScopeOwner, verify_owner
from kvward.seal.header import HEADER_BYTES
from kvward.store.backend import EntryName
from kvward.store.sealed import SealedStore
from kvward.terms import SharingLevel

Bytes = npt.NDArray[np.uint8]
NUM_BLOCKS = 3
MANIFEST_DIGEST = hashlib.sha256(b"a public model").digest()
LAYOUT = BlockLayout(
    order="layer,plane,token,head,channel",
    dtype="float16",
    block_tokens=4,
    num_planes=2,
    num_kv_heads=1,
    head_dim=4,
    tensor_ranks=1,
    layers_of_stage=(1,),
    num_kv_groups=1,
)
_TAG_BYTES = 16


class Side(NamedTuple):
    """Whose state it is."""

    tenant: str
    conversation: str
    epoch: int


PAIRS: Mapping[str, tuple[Side, Side]] = {
    "tenants": (Side("one", "a", 0), Side("other", "a", 0)),
    "conversations": (Side("one", "a", 0), Side("one", "b", 0)),
    "epochs": (Side("one", "a", 0), Side("one", "a", 1)),
}


class Guesses:
    """Prompts that the attacker takes into account, all of the same number of blocks.

    Attributes:
        chains: Hashes of their blocks, prompts x blocks x 32.
        plain: Their blocks' bytes, prompts x blocks x bytes.
    """

    def __init__(self, num_guesses: int, *, seed: int) -> None:
        dice = random.Random(seed)
        root = derive_chain_root(manifest_digest=MANIFEST_DIGEST, scope=None)
        self.chains: Bytes = np.empty((num_guesses, NUM_BLOCKS, 32), np.uint8)
        self.plain: Bytes = np.empty((num_guesses, NUM_BLOCKS, LAYOUT.block_bytes), np.uint8)
        for guess in range(num_guesses):
            parent = root
            for block in range(NUM_BLOCKS):
                tokens = [dice.randrange(50_000) for _ in range(LAYOUT.block_tokens)]
                parent = derive_chain_link(parent, tokens, extras=())
                self.chains[guess, block] = np.frombuffer(parent, np.uint8)
                plain = hashlib.shake_256(parent).digest(LAYOUT.block_bytes)
                self.plain[guess, block] = np.frombuffer(plain, np.uint8)

    def __len__(self) -> int:
        return len(self.chains)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Everything of one side that can be seen.

    Attributes:
        names: Of its entries, in the order in which they were stored.
        sealed: Their bytes.
        token: Its scope token.
        owner_tag: Its owner tag.
        owner: What these two say in plain.
    """

    names: Sequence[EntryName]
    sealed: Sequence[bytes]
    token: str
    owner_tag: str
    owner: ScopeOwner

    def field(self, name: str) -> Bytes:
        """Return a field of all entries, entries x bytes."""
        first, end = {
            "header": (0, HEADER_BYTES),
            "key id": (8, 16),
            "nonce": (40, 64),
            "body": (HEADER_BYTES, -_TAG_BYTES),
            "tag": (-_TAG_BYTES, None),
        }.get(name, (0, None))
        values = (
            [getattr(entry, name) for entry in self.names]
            if name in {"tenant", "scope", "name"}
            else [data[first:end] for data in self.sealed]
        )
        return np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the attacker sees of one world.

    Attributes:
        one: The side whose prompt is to be guessed.
        other: The side that may have the same.
    """

    one: Holding
    other: Holding
    guesses: Guesses


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the attacker sees, and what is true.

    Attributes:
        cached: Number of the prompt that the one side has cached.
        is_shared: Whether the other side has cached the same.
    """

    view: View
    cached: int
    is_shared: bool


def build_world(guesses: Guesses, dice: random.Random, *, pair: str) -> World:
    """Draw keys, a prompt and a coin, and have the product store what they say."""
    root = RootKey(dice.randbytes(32))
    deployment_key = DeploymentKey(dice.randbytes(32))
    cached, another = dice.sample(range(len(guesses)), 2)
    is_shared = dice.random() < 0.5
    one, other = (
        _store(root, deployment_key, side, guesses, prompt, SealKey(dice.randbytes(32)))
        for side, prompt in zip(
            PAIRS[pair], (cached, cached if is_shared else another), strict=True
        )
    )
    return World(
        view=View(one=one, other=other, guesses=guesses), cached=cached, is_shared=is_shared
    )


class _Keys:
    """Implements `KeyClient` for one scope, derived as the keyring does."""

    def __init__(self, keys: ScopeKeys) -> None:
        self._keys = keys

    def reading_keys(self, owner: ScopeOwner) -> Sequence[ScopeKeys]:
        return [self._keys]

    def writing_keys(self, owner: ScopeOwner) -> ScopeKeys:
        return self._keys


def _store(
    root: RootKey,
    deployment_key: DeploymentKey,
    side: Side,
    guesses: Guesses,
    prompt: int,
    seal_key: SealKey,
) -> Holding:
    issuer = ScopeIssuer.from_root_key(root, deployment="d")
    scope = Scope(
        deployment="d",
        tenant=side.tenant,
        level=SharingLevel.CONVERSATION,
        subject=issuer.named_subject(side.tenant, side.conversation),
        epoch=side.epoch,
    )
    token = issuer.token(scope)
    tag = issuer.owner_tag(scope, token=token)
    owner = verify_owner(tag, token=token, token_key=issuer.token_key)
    tenant_key = derive_tenant_key(root, deployment="d", tenant=side.tenant)
    keys = ScopeKeys(
        epoch=side.epoch,
        tenant_bucket=derive_tenant_bucket(deployment_key, tenant_id=owner.tenant_id),
        scope_bucket=derive_scope_bucket(tenant_key, owner.scope_id),
        seal_key=seal_key,
        name_key=derive_name_key(tenant_key, scope_id=owner.scope_id, epoch=side.epoch),
    )
    recorder = Recorder()
    store = SealedStore(
        recorder,
        _Keys(keys),
        layout=LAYOUT,
        limits=LIMITS,
        events=EventCounter(),
        now_unix_s=lambda: SEALED_UNIX_S,
    ).scope(owner)
    saved = recorder.save(
        store,
        [chain.tobytes() for chain in guesses.chains[prompt]],
        [plain.tobytes() for plain in guesses.plain[prompt]],
        LAYOUT.parts,
    )
    names, sealed = zip(*saved, strict=True)
    return Holding(names=names, sealed=sealed, token=token, owner_tag=tag, owner=owner)
