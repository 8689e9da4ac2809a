"""Every way to forge a log: which of its files become what."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping

from attacks.forgery_log.world import ORIGIN, Files, World, entry_of, lay_out, root_of
from kvward.ledger.checkpoint import Checkpoint, sign_checkpoint

Forged = Mapping[str, bytes | None]
"""Files of a folder after the forgery; None for one that is gone."""


def flip(rng: random.Random, data: bytes) -> bytes:
    """Return data with one bit turned."""
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def _flip_file(world: World, *, kind: str) -> Files:
    names = [name for name in world.genuine.files if name.startswith(kind)]
    name = world.rng.choice(names)
    return {name: flip(world.rng, world.genuine.files[name])}


def whole(world: World, files: Files) -> Forged:
    """Return files as all that there is: what the genuine log has beside them is gone."""
    return {**dict.fromkeys(world.genuine.files), **files}


def _edit_entries(
    world: World, change: Callable[[World, list[bytes]], object], *, tiles_too: bool
) -> Forged:
    entries = list(world.genuine.entries)
    change(world, entries)
    forged = whole(world, lay_out(entries, world.note()))
    if tiles_too:
        return forged
    return {name: data for name, data in forged.items() if name.startswith("tile/entries")}


def _replace(world: World, entries: list[bytes]) -> None:
    entries[world.place()] = entry_of(10**6 + world.rng.randrange(10**6))


def _drop(world: World, entries: list[bytes]) -> None:
    del entries[world.place()]


def _insert(world: World, entries: list[bytes]) -> None:
    entries.insert(world.place(), entry_of(10**6))


def _repeat(world: World, entries: list[bytes]) -> None:
    place = world.place()
    entries.insert(place, entries[place])


def _reorder(world: World, entries: list[bytes]) -> None:
    one, two = world.rng.sample(range(len(entries)), 2)
    entries[one], entries[two] = entries[two], entries[one]


def _truncate(world: World, entries: list[bytes]) -> None:
    del entries[world.rng.randrange(len(entries)) :]


def _splice(world: World, entries: list[bytes]) -> None:
    other = world.rng.choice(world.others).entries
    place = world.rng.randrange(min(len(other), len(entries)))
    entries[place:] = [*other[place:], *entries[len(other) :]]


def _respell(world: World, entries: list[bytes]) -> None:
    place = world.place()
    entries[place] = entries[place].replace(b":", b": ", 1)


def _resign(world: World, entries: list[bytes]) -> bytes:
    root = root_of(entries)
    return sign_checkpoint(Checkpoint(ORIGIN, len(entries), root), world.forger)


def _resigned(world: World) -> Forged:
    entries = list(world.genuine.entries)
    world.rng.choice([_replace, _drop, _insert, _truncate, lambda *_: None])(world, entries)
    return whole(world, lay_out(entries, _resign(world, entries)))


def _resigned_beside(world: World) -> Forged:
    """The forger's line beside a genuine line that was made for another text."""
    entries = list(world.genuine.entries)
    _replace(world, entries)
    genuine_line = world.note().partition(b"\n\n")[2]
    return whole(world, lay_out(entries, _resign(world, entries) + genuine_line))


def _moved_signature(world: World) -> Forged:
    """A genuine signature of an earlier checkpoint below a text that the forger wrote."""
    entries = list(world.genuine.entries)
    _truncate(world, entries)
    _insert_at_end(world, entries)
    text = Checkpoint(ORIGIN, len(entries), root_of(entries)).text().encode()
    line = world.rng.choice(world.genuine.notes).partition(b"\n\n")[2]
    return whole(world, lay_out(entries, text + b"\n" + line))


def _insert_at_end(world: World, entries: list[bytes]) -> None:
    entries.append(entry_of(10**6 + world.rng.randrange(10**6)))


def _other_log(world: World) -> Forged:
    return whole(world, world.rng.choice(world.others).files)


def _foreign_checkpoint(world: World) -> Files:
    return {"checkpoint": world.rng.choice(world.others).notes[-1]}


def _edit_checkpoint(world: World) -> Files:
    rng, note = world.rng, world.note()
    text, _, line = note.partition(b"\n\n")
    origin, size, root = text.split(b"\n")
    number = int(size)
    edits = [
        (origin, b"%d" % rng.choice([number - 1, number + 1, 0, number * 10]), root),
        (origin, b"0" + size, root),
        (origin, size, base64.b64encode(rng.randbytes(32))),
        (origin + b"x", size, root),
        (b"", size, root),
        (origin, size, root + b"\nextension"),
    ]
    if rng.random() < 0.3:
        other = rng.choice([note[:-1], note + b"\n", note.replace(b"\n\n", b"\n"), text + b"\n\n"])
        return {"checkpoint": other}
    return {"checkpoint": b"\n".join(rng.choice(edits)) + b"\n\n" + line}


def _swap(world: World, *, kind: str) -> Files:
    names = [name for name in world.genuine.files if name.startswith(kind)]
    if len(names) < 2:
        others = [other.files.get(names[0]) for other in world.others]
        return {names[0]: next(data for data in others if data is not None)}
    one, two = world.rng.sample(names, 2)
    return {one: world.genuine.files[two], two: world.genuine.files[one]}


def _cut(world: World) -> Files:
    name = world.rng.choice(list(world.genuine.files))
    data = world.genuine.files[name]
    return {name: data[: world.rng.randrange(len(data))]}


def _extend(world: World) -> Files:
    name = world.rng.choice(list(world.genuine.files))
    extra = world.rng.randbytes(world.rng.randint(1, 40))
    return {name: world.genuine.files[name] + extra}


def _lose(world: World) -> Forged:
    return {world.rng.choice(list(world.genuine.files)): None}


def _roll_back(world: World) -> Forged:
    """A whole earlier state, as it was signed."""
    note = world.rng.choice(world.genuine.notes[:-2])
    return whole(world, lay_out(world.genuine.entries[: world.genuine.opened(note).size], note))


def _roll_checkpoint_back(world: World) -> Files:
    return {"checkpoint": world.rng.choice(world.genuine.notes[:-2])}


def _fork(world: World) -> Forged:
    """A second history by the log's own key: by its owner, or whoever stole it."""
    entries = list(world.genuine.entries)
    entries[world.rng.randrange(world.genuine.known.size)] = entry_of(10**7)
    if world.rng.random() < 0.5:
        del entries[world.rng.randint(world.genuine.known.size, len(entries)) :]
    root = root_of(entries)
    note = sign_checkpoint(Checkpoint(ORIGIN, len(entries), root), world.genuine.signer)
    return whole(world, lay_out(entries, note))


Forge = Callable[[World], Forged]


def _edits(change: Callable[[World, list[bytes]], object], *, tiles_too: bool) -> Forge:
    return lambda world: _edit_entries(world, change, tiles_too=tiles_too)


FORGERIES: dict[str, Forge] = {
    "a bit of an entry": lambda world: _flip_file(world, kind="tile/entries"),
    "a bit of a tile": lambda world: _flip_file(world, kind="tile/"),
    "a bit of the checkpoint": lambda world: _flip_file(world, kind="checkpoint"),
    **{
        f"{what}{', tiles too' if tiles_too else ''}": _edits(change, tiles_too=tiles_too)
        for what, change in (
            ("edit an entry", _replace),
            ("drop an entry", _drop),
            ("insert an entry", _insert),
            ("repeat an entry", _repeat),
            ("reorder entries", _reorder),
            ("truncate", _truncate),
            ("splice another log in", _splice),
            ("spell an entry otherwise", _respell),
        )
        for tiles_too in (False, True)
    },
    "sign with another key": _resigned,
    "sign with another key beside a genuine line": _resigned_beside,
    "move a genuine signature": _moved_signature,
    "another log": _other_log,
    "another log's checkpoint": _foreign_checkpoint,
    "edit the checkpoint": _edit_checkpoint,
    "swap tiles": lambda world: _swap(world, kind="tile/0"),
    "swap bundles": lambda world: _swap(world, kind="tile/entries"),
    "cut a file": _cut,
    "extend a file": _extend,
    "lose a file": _lose,
    "roll back": _roll_back,
    "roll the checkpoint back": _roll_checkpoint_back,
    "fork": _fork,
}
# What only the known checkpoint can refuse.
BY_KNOWN = {"roll back", "roll the checkpoint back", "fork"}
