"""Old copies where they must not open: after erasure, rotation and expiry, in another deployment,
under another layout, and blocks of which parts are missing."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attacks.stored_state.campaign import Tally, read
from attacks.stored_state.world import (
    LAYOUTS,
    MAX_AGE_S,
    Item,
    World,
    built,
    tenant_name,
)
from kvward.scope.keyring import erase_scope, erase_tenant, rotate


def replay_everything(*, seed: int) -> Tally:
    """Run every replay once, each in a world of its own."""
    tally = Tally()
    for name, attack in {
        "missing part": _missing_part,
        "part of the block before": _part_of_another_version,
        "past its age": _past_its_age,
        "from the future": _from_the_future,
        "another layout of the same size": _other_layout,
        "after the scope was erased": _after_erase_scope,
        "after the tenant was erased": _after_erase_tenant,
        "after the old epoch was retired": _after_retirement,
        "from another deployment": _from_another_deployment,
    }.items():
        with tempfile.TemporaryDirectory() as folder, built(Path(folder), seed=seed) as world:
            before = Counter(world.events.counts())
            tally.applied[name] += attack(world, tally, name)
            found = Counter(world.events.counts()) - before
            tally.reasons[name] = Counter(
                {
                    event.partition(":")[2]: count
                    for event, count in found.items()
                    if event.startswith(("store.refused:", "store.incomplete:"))
                }
            )
    return tally


def _missing_part(world: World, tally: Tally, what: str) -> int:
    cut = [item for item in world.items if item.layout == "cut"]
    for item in cut:
        del world.shelf.content[world.random.choice(item.names)]
    return _read_each(world, cut, tally, what)


def _part_of_another_version(world: World, tally: Tally, what: str) -> int:
    """The same block saved twice is the same block; a torn one has parts of another."""
    cut = [item for item in world.items if item.layout == "cut" and item.position > 0]
    at = {(i.owner, i.model, i.position): i for i in world.items if i.layout == "cut"}
    for item in cut:
        before = at[(item.owner, item.model, item.position - 1)]
        part = world.random.randrange(len(item.names))
        world.shelf.content[item.names[part]] = world.stored[before.names[part]]
    return _read_each(world, cut, tally, what)


def _past_its_age(world: World, tally: Tally, what: str) -> int:
    world.now += MAX_AGE_S + 1
    # The keyring would refuse as well: the store's keys are warm and go on.
    return _read_each(world, world.items, tally, what)


def _from_the_future(world: World, tally: Tally, what: str) -> int:
    world.now -= 6
    return _read_each(world, world.items, tally, what)


def _other_layout(world: World, tally: Tally, what: str) -> int:
    whole = [item for item in world.items if item.layout == "whole"]
    for item in whole:
        read(world, [item], tally, what=what, layout="turned")
    return len(whole)


def _after_erase_scope(world: World, tally: Tally, what: str) -> int:
    items = [item for item in world.items if item.tenant == 1]
    for conversation in {item.conversation for item in items}:
        scope_id = world.owner(1, conversation).scope_id
        erase_scope(world.keyring, tenant_name(1), scope_id)
    return _read_after_erasure(world, items, tally, what)


def _after_erase_tenant(world: World, tally: Tally, what: str) -> int:
    items = [item for item in world.items if item.tenant == 1]
    erase_tenant(world.keyring, tenant_name(1))
    world.keyring.tenant_key(tenant_name(1))  # it comes back
    return _read_after_erasure(world, items, tally, what)


def _after_retirement(world: World, tally: Tally, what: str) -> int:
    items = [item for item in world.items if item.tenant == 0]
    rotate(world.keyring, tenant_name(0), retire_old=True)
    return _read_after_erasure(world, items, tally, what)


def _read_after_erasure(world: World, items: Sequence[Item], tally: Tally, what: str) -> int:
    """Read with the old token, with the new one, and with the old bytes under the new names."""
    world.shelf.content.update(world.stored)  # whatever was purged is back
    _forget_keys(world)
    count = _read_each(world, items, tally, what)
    renewed = [replace(i, owner=world.owner(i.tenant, i.conversation)) for i in items]
    count += _read_each(world, renewed, tally, what)
    for old, new in zip(items, renewed, strict=True):
        names = world.names(new.owner, new.chain_hash, new.layout)
        for old_name, name in zip(old.names, names, strict=True):
            world.shelf.content[name] = world.stored[old_name]
    _forget_keys(world)
    return count + _read_each(world, renewed, tally, what)


def _from_another_deployment(world: World, tally: Tally, what: str) -> int:
    with tempfile.TemporaryDirectory() as folder, built(Path(folder), seed=1) as other:
        for mine, theirs in zip(world.items, other.items, strict=True):
            for my_name, their_name in zip(mine.names, theirs.names, strict=True):
                world.shelf.content[my_name] = other.stored[their_name]
    return _read_each(world, world.items, tally, what)


def _read_each(world: World, items: Sequence[Item], tally: Tally, what: str) -> int:
    for item in items:
        read(world, [item], tally, what=what, layout=item.layout)
    return len(items)


def _forget_keys(world: World) -> None:
    world.keyring.forget_unwrapped()
    for layout in LAYOUTS:
        world._stores[layout] = world.fresh_store(layout)  # a restart
