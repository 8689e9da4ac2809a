"""Forgeries by hand: bytes, lines, files and archives, with the manifest mended or not."""

from __future__ import annotations

import base64
import io
import json
import random
import tarfile
from collections.abc import Callable, Iterator
from functools import partial

from attacks.forgery_bundle.forgery import Forge, Forged, Forgery, other_byte
from attacks.forgery_bundle.world import OTHER_SIGNER, World
from kvward.ledger.bundle.archive import BLOCK_BYTES
from kvward.ledger.bundle.manifest import AUDIT_NAMES, FIXED_NAMES, MANIFEST_NAME, Role
from kvward.ledger.bundle.signatures import render_keys
from kvward.ledger.bundle.writing import make_archive, with_manifest
from kvward.ledger.document import to_canonical_json
from kvward.ledger.dsse import sign_envelope
from kvward.ledger.statement import PAYLOAD_TYPE

Files = dict[str, bytes]
Edit = Callable[[random.Random, Files], None]
NEEDED = tuple(role for role in (*FIXED_NAMES, *AUDIT_NAMES) if role is not Role.CONTRACT_ENVELOPE)


def iter_file_forgeries() -> Iterator[Forgery]:
    """Yield forgeries of files and archives."""
    for role in NEEDED:
        yield _edit(f"edit a byte of the {role.value}", partial(_flip, role))
        yield _edit(f"truncate the {role.value}", partial(_truncate, role))
        if role not in {Role.CONSISTENCY, Role.OLDER_CHECKPOINT}:
            yield _edit(f"drop the {role.value}", partial(_drop, role))
    for role in AUDIT_NAMES:
        yield _edit(f"swap the {role.value} of two audits", partial(_swap, [role]))
    yield _edit(
        "swap histories and reports of two audits", partial(_swap, [Role.HISTORY, Role.REPORT])
    )
    yield _edit("swap all but the names of two audits", partial(_swap, list(AUDIT_NAMES)))
    for role in (Role.HISTORY, Role.ENTRIES):
        yield _edit(f"drop a line of the {role.value}", partial(_lines, role, _without))
        yield _edit(f"repeat a line of the {role.value}", partial(_lines, role, _repeated))
        yield _edit(f"exchange two lines of the {role.value}", partial(_lines, role, _exchanged))
    yield _edit("drop a plan entry", _drop_plan_entry)
    yield _edit("renumber the entries behind a dropped one", _renumber)
    yield _edit("change a proof", _change_proof)
    yield _edit("change an entry", _change_entry)
    yield _edit("change an observation", _change_observation)
    yield _edit("change a number of the report", _change_report)
    yield _edit("change an outcome of the report", _change_outcome)
    yield _edit("add a file", _add_file)
    yield _edit("call an audit otherwise", _rename)
    yield _edit("add a key", _add_key)
    yield _edit("replace the keys", _replace_keys)
    yield _edit("drop the consistency proof only", partial(_drop, Role.CONSISTENCY))
    yield _edit("drop the older checkpoint only", partial(_drop, Role.OLDER_CHECKPOINT))
    yield _edit("sign a statement with another key", _sign_anew)
    yield _edit("add another key's signature to a statement", _sign_too)
    yield _edit("change a statement below its signature", _change_statement)
    for label, archive in _ARCHIVES.items():
        yield Forgery(label=f"archive: {label}", forge=partial(_archived, archive))
    yield Forgery(label="edit any byte, manifest as it was", forge=_unmended)


def _edit(label: str, edit: Edit) -> Forgery:
    return Forgery(label=label, forge=_mended(edit))


def _mended(edit: Edit) -> Forge:
    def forge(dice: random.Random, world: World) -> Forged:
        files = dict(world.files)
        edit(dice, files)
        return Forged(files=with_manifest(files), known=world.known)

    return forge


def _unmended(dice: random.Random, world: World) -> Forged:
    files = dict(world.files)
    name = dice.choice(sorted(files))
    files[name] = other_byte(dice, files[name])
    return Forged(files=files, known=world.known)


def _names(files: Files, role: Role) -> list[str]:
    if role in FIXED_NAMES:
        return [FIXED_NAMES[role]]
    return sorted(name for name in files if name.endswith(f"/{AUDIT_NAMES[role]}"))


def _flip(role: Role, dice: random.Random, files: Files) -> None:
    name = dice.choice(_names(files, role))
    files[name] = other_byte(dice, files[name])


def _truncate(role: Role, dice: random.Random, files: Files) -> None:
    name = dice.choice(_names(files, role))
    files[name] = files[name][: dice.randrange(len(files[name]))]


def _drop(role: Role, dice: random.Random, files: Files) -> None:
    del files[dice.choice(_names(files, role))]


def _swap(roles: list[Role], _: random.Random, files: Files) -> None:
    for role in roles:
        one, two = _names(files, role)
        files[one], files[two] = files[two], files[one]


def _lines(
    role: Role,
    change: Callable[[random.Random, list[bytes]], list[bytes]],
    dice: random.Random,
    files: Files,
) -> None:
    name = dice.choice(_names(files, role))
    files[name] = b"".join(change(dice, files[name].splitlines(keepends=True)))


def _without(dice: random.Random, lines: list[bytes]) -> list[bytes]:
    at = dice.randrange(len(lines))
    return lines[:at] + lines[at + 1 :]


def _repeated(dice: random.Random, lines: list[bytes]) -> list[bytes]:
    at, to = dice.randrange(len(lines)), dice.randrange(len(lines) + 1)
    return [*lines[:to], lines[at], *lines[to:]]


def _exchanged(dice: random.Random, lines: list[bytes]) -> list[bytes]:
    one, two = dice.sample(range(len(lines)), 2)
    lines[one], lines[two] = lines[two], lines[one]
    return lines


def _entries(files: Files) -> list[dict[str, object]]:
    return [json.loads(line) for line in files[FIXED_NAMES[Role.ENTRIES]].splitlines()]


def _put_entries(files: Files, entries: list[dict[str, object]]) -> None:
    lines = [to_canonical_json(entry) + b"\n" for entry in entries]
    files[FIXED_NAMES[Role.ENTRIES]] = b"".join(lines)


def _drop_plan_entry(dice: random.Random, files: Files) -> None:
    entries = _entries(files)
    plans = [n for n, line in enumerate(entries) if '"kind":"plan"' in str(line["entry"])]
    del entries[dice.choice(plans)]
    _put_entries(files, entries)


def _renumber(dice: random.Random, files: Files) -> None:
    entries = _entries(files)
    del entries[dice.randrange(len(entries))]
    for number, line in enumerate(entries):
        line["index"] = number
    _put_entries(files, entries)


def _change_proof(dice: random.Random, files: Files) -> None:
    entries = _entries(files)
    line = dice.choice(entries)
    proof = list(line["proof"])  # type: ignore[call-overload]
    other = dice.choice(["drop", "add", "change", "exchange"])
    at = dice.randrange(len(proof))
    if other == "drop":
        del proof[at]
    elif other == "add":
        proof.insert(at, dice.randbytes(32).hex())
    elif other == "exchange" and len(proof) > 1:
        proof = proof[1:] + proof[:1]
    else:
        proof[at] = dice.randbytes(32).hex()
    line["proof"] = proof
    _put_entries(files, entries)


def _change_entry(dice: random.Random, files: Files) -> None:
    entries = _entries(files)
    line = dice.choice(entries)
    value = json.loads(str(line["entry"]))
    name = dice.choice(sorted(value.keys() - {"kind"}))
    value[name] = _other_value(dice, value[name])
    line["entry"] = to_canonical_json(value).decode()
    _put_entries(files, entries)


def _change_observation(dice: random.Random, files: Files) -> None:
    name = dice.choice(_names(files, Role.HISTORY))
    files[name] = change_observation(dice, files[name])


def change_observation(dice: random.Random, history: bytes) -> bytes:
    """Return a history of which one trial saw something else."""
    lines = history.splitlines(keepends=True)
    at = dice.randrange(1, len(lines))
    trial = json.loads(lines[at])
    field = dice.choice(
        ["cached_tokens", "prompt_tokens", "total_ns", "start_ns", "status", "tenant", "coin"]
    )
    trial[field] = _other_value(dice, trial[field])
    lines[at] = json.dumps(trial, separators=(",", ":")).encode() + b"\n"
    return b"".join(lines)


def _change_report(dice: random.Random, files: Files) -> None:
    name = dice.choice(_names(files, Role.REPORT))
    value = json.loads(files[name])
    verdict = dice.choice(value["verdicts"])
    numbers = [key for key, held in verdict.items() if type(held) in {int, float}]
    field = dice.choice(numbers)
    if field == "bound" or isinstance(verdict[field], float):
        verdict[field] = verdict[field] * dice.choice([0.1, 0.5, 1 - 2**-52, 2])
    else:
        verdict[field] += dice.choice([-1, 1, 7])
    files[name] = json.dumps(value, indent=1, ensure_ascii=False).encode()


def _change_outcome(dice: random.Random, files: Files) -> None:
    name = dice.choice(_names(files, Role.REPORT))
    value = json.loads(files[name])
    verdict = dice.choice(value["verdicts"])
    others = {"VIOLATED", "INCONCLUSIVE", "NOT_OBSERVED"} - {verdict["outcome"]}
    verdict["outcome"] = dice.choice(sorted(others))
    files[name] = json.dumps(value, indent=1, ensure_ascii=False).encode()


def _add_file(dice: random.Random, files: Files) -> None:
    kind = dice.choice(sorted(AUDIT_NAMES.values()))
    files[f"audits/{dice.randbytes(8).hex()}/{kind}"] = dice.randbytes(20)


def _rename(dice: random.Random, files: Files) -> None:
    audit = dice.choice(_names(files, Role.PLAN)).split("/")[1]
    other = dice.randbytes(8).hex()
    for name in [name for name in files if f"/{audit}/" in name]:
        files[name.replace(audit, other)] = files.pop(name)


def _add_key(_: random.Random, files: Files) -> None:
    files[FIXED_NAMES[Role.KEYS]] = files[FIXED_NAMES[Role.KEYS]] + (
        OTHER_SIGNER.verifier.to_text().encode() + b"\n"
    )


def _replace_keys(_: random.Random, files: Files) -> None:
    files[FIXED_NAMES[Role.KEYS]] = render_keys([OTHER_SIGNER.verifier])


def _statement(dice: random.Random, files: Files) -> tuple[str, bytes]:
    name = dice.choice(_names(files, Role.STATEMENT))
    return name, base64.b64decode(json.loads(files[name])["payload"])


def _sign_anew(dice: random.Random, files: Files) -> None:
    name, payload = _statement(dice, files)
    files[name] = sign_envelope(payload, PAYLOAD_TYPE, signers=[OTHER_SIGNER])
    if dice.random() < 0.5:
        _add_sorted_key(files)


def _sign_too(dice: random.Random, files: Files) -> None:
    name, payload = _statement(dice, files)
    value = json.loads(files[name])
    theirs = json.loads(sign_envelope(payload, PAYLOAD_TYPE, signers=[OTHER_SIGNER]))
    value["signatures"].insert(dice.randrange(2), theirs["signatures"][0])
    files[name] = to_canonical_json(value)


def _change_statement(dice: random.Random, files: Files) -> None:
    name, payload = _statement(dice, files)
    value = json.loads(files[name])
    changed = payload.replace(b'"PASSED"', b'"FAILED"').replace(b'"FAILED"', b'"PASSED"')
    changed = changed if changed != payload and dice.random() < 0.5 else other_byte(dice, payload)
    value["payload"] = base64.b64encode(changed).decode()
    files[name] = to_canonical_json(value)


def _add_sorted_key(files: Files) -> None:
    added = OTHER_SIGNER.verifier.to_text().encode()
    lines = [*files[FIXED_NAMES[Role.KEYS]].splitlines(), added]
    files[FIXED_NAMES[Role.KEYS]] = b"".join(line + b"\n" for line in sorted(lines))


def _other_value(dice: random.Random, value: object) -> object:
    match value:
        case bool():
            return not value
        case int() | float():
            return max(0, value + dice.choice([-1, 1, 16, 100])) if value else dice.randrange(1, 99)
        case None:
            return dice.randrange(1, 99)
        case str() if len(value) == 64:
            return dice.randbytes(32).hex()
        case str():
            return "b" if value == "a" else "a"
        case _:
            return None


# Archives.


def _archived(
    change: Callable[[random.Random, Files], bytes], dice: random.Random, world: World
) -> Forged:
    return Forged(files=change(dice, world.files), known=world.known)


def _flip_archive(dice: random.Random, files: Files) -> bytes:
    return other_byte(dice, make_archive(files))


def _truncate_archive(dice: random.Random, files: Files) -> bytes:
    data = make_archive(files)
    return data[: dice.randrange(len(data))]


def _lengthen_archive(dice: random.Random, files: Files) -> bytes:
    return make_archive(files) + dice.choice([b"\x00", bytes(BLOCK_BYTES), dice.randbytes(100)])


def _members(files: Files) -> list[tuple[tarfile.TarInfo, bytes]]:
    members = []
    for name in sorted(files):
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(files[name]), 0o644
        members.append((info, files[name]))
    return members


def _packed(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _shuffle_archive(dice: random.Random, files: Files) -> bytes:
    members = _members(files)
    one, two = dice.sample(range(len(members)), 2)
    members[one], members[two] = members[two], members[one]
    return _packed(members)


def _repeat_member(dice: random.Random, files: Files) -> bytes:
    members = _members(files)
    info, data = dice.choice(members)
    again = other_byte(dice, data) if dice.random() < 0.5 else data
    members.insert(dice.randrange(len(members) + 1), (info, again))
    return _packed(members)


def _mark_member(dice: random.Random, files: Files) -> bytes:
    members = _members(files)
    info, _ = dice.choice(members)
    field, value = dice.choice(
        [("mtime", 1), ("uid", 1), ("gid", 7), ("mode", 0o755), ("uname", "x"), ("gname", "x")]
    )
    setattr(info, field, value)
    return _packed(members)


def _link_member(dice: random.Random, files: Files) -> bytes:
    members = _members(files)
    info, _ = dice.choice(members)
    info.type = dice.choice([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
    info.linkname = dice.choice(["/etc/hostname", MANIFEST_NAME, "../outside"])
    return _packed(members)


def _name_member(dice: random.Random, files: Files) -> bytes:
    members = _members(files)
    info, _ = dice.choice(members)
    info.name = dice.choice([f"/{info.name}", f"../{info.name}", f"./{info.name}", "x", "a" * 90])
    return _packed(members)


_ARCHIVES: dict[str, Callable[[random.Random, Files], bytes]] = {
    "edit a byte": _flip_archive,
    "truncate": _truncate_archive,
    "lengthen": _lengthen_archive,
    "exchange two members": _shuffle_archive,
    "repeat a member": _repeat_member,
    "mark a member": _mark_member,
    "make a member a link": _link_member,
    "name a member otherwise": _name_member,
}
