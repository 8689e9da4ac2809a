"""Bundles: what is shown, what is not, and what fails, one thing at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from attacks.forgery_bundle.world import (
    CONTRACT,
    OTHER_SIGNER,
    SIGNER,
    World,
    make_log,
)
from jsonschema import Draft202012Validator

from kvward.audit.history import parse_history
from kvward.cli.recomputing import bound_ppb, recompute_audit
from kvward.cli.verify import LIMITS, iter_lines, to_value
from kvward.errors import BundleError, UsageError
from kvward.ledger.bundle.checking import CONTRACT_TYPE, check_bundle
from kvward.ledger.bundle.collecting import collect_bundle
from kvward.ledger.bundle.log_part import parse_unverified_entries
from kvward.ledger.bundle.manifest import FIXED_NAMES, MANIFEST_NAME, Role, make_manifest
from kvward.ledger.bundle.reading import load_bundle
from kvward.ledger.bundle.result import Standing, Verification
from kvward.ledger.bundle.writing import make_archive, save_bundle, with_manifest
from kvward.ledger.checkpoint import Checkpoint, sign_checkpoint
from kvward.ledger.dsse import sign_envelope
from kvward.ledger.entry import PolicyChanged
from kvward.ledger.note import NoteSigner, NoteVerifier
from kvward.terms import ExitCode

SPEC = Path(__file__).parents[3] / "docs" / "spec"
MANIFEST_SCHEMA = json.loads((SPEC / "bundle-manifest-v1.schema.json").read_text())


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def check(
    files: dict[str, bytes],
    *,
    trusted: list[NoteVerifier] | None = None,
    known: bytes | None = None,
    partial: bool = False,
) -> Verification:
    return check_bundle(
        files,
        trusted=[SIGNER.verifier] if trusted is None else trusted,
        known=known,
        allow_partial=partial,
        recompute=recompute_audit,
    )


def failures(result: Verification) -> str:
    return " | ".join(step.told for step in result.steps if step.standing is Standing.FAILS)


def collected(world: World, **changes: object) -> dict[str, bytes]:
    arguments: dict[str, object] = {
        "keys": [SIGNER.verifier],
        "contract": CONTRACT,
        "contract_envelope": None,
        "all_entries": True,
    }
    log = changes.pop("log", world.log)
    audits = changes.pop("audits", [world.clean.files, world.leaking.files])
    return collect_bundle(log, audits, **(arguments | changes))  # type: ignore[arg-type]


def test_genuine_bundle_holds_and_lists_what_it_does_not_answer(world: World) -> None:
    result = check(world.files, known=world.known)
    assert result.exit_code == 0, failures(result)
    assert [row.plan_digest for row in result.audits] == sorted(
        audit.facts.plan_digest for audit in (world.clean, world.leaking)
    )
    assert result.unanswered == [world.unanswered.digest]
    text = "\n".join(iter_lines(result))
    assert world.unanswered.digest in text
    assert text.endswith("It verifies.")
    for limit in LIMITS:
        assert limit in text
    value = to_value(result)
    assert value["standing"] == "holds"
    json.dumps(value)


def test_nobody_is_believed_without_a_key(world: World) -> None:
    result = check(world.files, trusted=[])
    assert result.exit_code == ExitCode.INCONCLUSIVE
    assert "nobody's signature was checked" in "\n".join(iter_lines(result))


def test_somebody_else_of_the_same_name_is_not_believed(world: World) -> None:
    result = check(world.files, trusted=[OTHER_SIGNER.verifier])
    assert result.exit_code == ExitCode.EVIDENCE


def test_audits_of_one_bundle_are_found_elsewhere_from_the_other(world: World) -> None:
    result = check(collected(world, audits=[world.clean.files]))
    assert result.exit_code == 0, failures(result)
    assert result.elsewhere == [world.leaking.facts.plan_digest]


def test_entries_may_be_left_out_only_where_that_is_accepted(world: World) -> None:
    files = collected(world, all_entries=False)
    assert check(files).exit_code == ExitCode.EVIDENCE
    result = check(files, partial=True)
    assert result.exit_code == ExitCode.INCONCLUSIVE
    assert "plans without results could be there" in "\n".join(iter_lines(result))
    # Here the tree cannot be worked out; what is known has to be proved to be its beginning.
    assert "tell" not in failures(
        check(files, partial=True, known=make_log(world.entries[:3]).note)
    )
    assert "--since" in failures(check(files, partial=True, known=world.known))
    other = make_log([*world.entries[:2], world.entries[3]]).note
    assert "two stories" in failures(check(files, partial=True, known=other))


def test_log_of_one_entry_and_one_that_does_not_grow(world: World) -> None:
    result = check(collected(world, log=make_log(world.entries, older_size=len(world.entries))))
    assert result.exit_code == 0, failures(result)
    assert check(world.files, known=world.log.note).exit_code == 0
    fork = make_log([*world.entries[:-1], world.entries[0]]).note
    assert "two stories" in failures(check(world.files, known=fork))


def test_known_checkpoint_has_to_be_signed_and_of_the_log(world: World) -> None:
    forged = make_log(world.entries[:-1], signer=OTHER_SIGNER).note
    assert check(world.files, known=forged).exit_code == ExitCode.EVIDENCE
    assert check(world.files, known=b"nothing").exit_code == ExitCode.EVIDENCE


def test_checkpoints_of_another_log_say_nothing(world: World) -> None:
    other = NoteSigner("other.example", b"\x03" * 32)
    elsewhere = make_log(world.entries[:3], signer=other)
    both = [SIGNER.verifier, other.verifier]
    result = check(world.files, trusted=both, known=elsewhere.note)
    assert "that you know is one of another log" in failures(result)
    log = replace(world.log, older=(elsewhere.note, elsewhere.checkpoint))
    assert "older checkpoint is one of another" in failures(
        check(collected(world, log=log, keys=both), trusted=both)
    )


def test_log_of_no_entry_has_the_root_of_no_entry(world: World) -> None:
    note = sign_checkpoint(Checkpoint(SIGNER.name, 0, bytes(32)), SIGNER)
    files = {name: data for name, data in world.files.items() if "older" not in name}
    del files[FIXED_NAMES[Role.CONSISTENCY]]
    files |= {FIXED_NAMES[Role.CHECKPOINT]: note, FIXED_NAMES[Role.ENTRIES]: b""}
    assert "do not lead to the root" in failures(check(with_manifest(files)))


def test_proofs_and_envelopes_have_one_spelling(world: World) -> None:
    for name in (FIXED_NAMES[Role.CONSISTENCY], FIXED_NAMES[Role.ENTRIES]):
        files = dict(world.files)
        files[name] = files[name].replace(b'"proof":[', b'"proof": [', 1)
        assert "one spelling" in failures(check(with_manifest(files)))
    files = dict(world.files)
    name = f"audits/{world.clean.facts.plan_digest[:16]}/statement.dsse.json"
    files[name] = files[name] + b"\n"
    assert "one spelling" in failures(check(with_manifest(files)))
    assert "one spelling" in failures(
        check(world.files | {MANIFEST_NAME: world.files[MANIFEST_NAME] + b" "})
    )


def test_entries_of_no_line_are_those_of_an_empty_log() -> None:
    assert parse_unverified_entries(b"") == []
    with pytest.raises(BundleError, match="within a line"):
        parse_unverified_entries(b"{}")


def test_plan_of_an_earlier_version_is_sent_to_that_version(world: World) -> None:
    """A plan that lacks what this version writes has another digest when it is written again."""
    plan, trials = parse_history(world.clean.files.history, name="it")
    value = json.loads(plan.to_json())
    del value["doors"]
    head = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    history = head + b"\n" + world.clean.files.history.partition(b"\n")[2]
    files = replace(world.clean.files, plan=head, history=history)
    told = failures(check(collected(world, audits=[files])))
    assert f"Verify it with kvward {plan.tool_version}" in told
    assert trials


def test_contract_is_bound_by_the_log_and_by_its_signature(world: World) -> None:
    envelope = sign_envelope(CONTRACT, CONTRACT_TYPE, signers=[SIGNER])
    result = check(collected(world, contract_envelope=envelope))
    assert result.exit_code == 0, failures(result)
    wrong = sign_envelope(b"{}", CONTRACT_TYPE, signers=[SIGNER])
    assert "not the one that was signed" in failures(
        check(collected(world, contract_envelope=wrong))
    )
    unlisted = sign_envelope(CONTRACT, CONTRACT_TYPE, signers=[OTHER_SIGNER])
    assert check(collected(world, contract_envelope=unlisted)).exit_code == ExitCode.EVIDENCE
    alone = collected(world, contract=None, contract_envelope=envelope)
    assert "no contract" in failures(check(alone))
    assert "knows nothing" in failures(check(collected(world, contract=b"{}")))
    assert "does not hold" in failures(check(collected(world, contract=None)))


def test_one_audit_that_fails_does_not_hide_the_other(world: World) -> None:
    files = dict(world.files)
    name = f"audits/{world.clean.facts.plan_digest[:16]}/report.json"
    files[name] = files[name].replace(b"made-up", b"other")
    result = check(with_manifest(files))
    assert result.exit_code == ExitCode.EVIDENCE
    assert [row.plan_digest for row in result.audits] == [world.leaking.facts.plan_digest]


def test_difference_is_named_with_both_values(world: World) -> None:
    files = dict(world.files)
    name = f"audits/{world.clean.facts.plan_digest[:16]}/report.json"
    value = json.loads(files[name])
    value["verdicts"][1]["bound"] = 0.001
    value["verdicts"][2]["more"] = []
    files[name] = json.dumps(value, indent=1).encode()
    told = failures(check(with_manifest(files)))
    assert "verdicts[1].bound is 0.001, the history gives 0." in told
    assert "verdicts[2].more is too much" in told
    files[name] = json.dumps(json.loads(world.files[name])).encode()
    assert "written in another way" in failures(check(with_manifest(files)))


def test_time_between_plan_and_verdict_has_to_hold_the_audit(world: World) -> None:
    late = list(world.entries)
    begun = late[1].at_unix_ms
    late[1] = type(late[1])(**(_fields(late[1]) | {"at_unix_ms": begun + 2_000}))
    result = check(collected(world, log=make_log(late)))
    assert result.exit_code == ExitCode.INCONCLUSIVE
    assert "logged after the audit had begun" in "\n".join(iter_lines(result))
    early = [
        type(entry)(**(_fields(entry) | {"at_unix_ms": begun - 10_000})) for entry in world.entries
    ]
    assert "before the last answer" in failures(check(collected(world, log=make_log(early))))


def _fields(entry: object) -> dict[str, object]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}  # type: ignore[attr-defined]


def test_manifest_is_described_by_its_schema(world: World) -> None:
    validator = Draft202012Validator(MANIFEST_SCHEMA)
    value = json.loads(world.files[MANIFEST_NAME])
    validator.validate(value)
    for change in (
        {"format": "kvward evidence bundle 2"},
        {"files": [value["files"][0] | {"name": "../x"}]},
        {"files": [value["files"][0] | {"role": "other"}]},
        {"more": 1},
    ):
        assert not validator.is_valid(value | change)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["files"].reverse(),
        lambda value: value["files"].append(value["files"][0]),
        lambda value: value["files"][0].update(role="plan"),
        lambda value: value["files"][0].update(bytes=1),
        lambda value: value["files"][0].update(more=1),
        lambda value: value.update(format="kvward evidence bundle 2"),
        lambda value: value.update(files={}),
        lambda value: value.update(more=1),
    ],
)
def test_manifest_that_is_none_is_refused(
    world: World, change: Callable[[dict[str, object]], None]
) -> None:
    value = json.loads(world.files[MANIFEST_NAME])
    change(value)
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    assert check(world.files | {MANIFEST_NAME: data}).exit_code == ExitCode.EVIDENCE


def test_what_is_no_bundle_is_none() -> None:
    assert check({}).exit_code == ExitCode.EVIDENCE
    assert check({MANIFEST_NAME: make_manifest({})}).exit_code == ExitCode.EVIDENCE
    assert Verification().exit_code == ExitCode.EVIDENCE


def test_bundle_without_an_audit_is_not_made_and_does_not_verify(world: World) -> None:
    with pytest.raises(UsageError):
        collected(world, audits=[])
    files = {name: data for name, data in world.files.items() if not name.startswith("audits/")}
    assert "holds no audit" in failures(check(with_manifest(files)))


def test_log_that_is_too_large_is_not_bundled_whole(world: World) -> None:
    entry = PolicyChanged(at_unix_ms=1, policy_digest="1" * 64)
    large = make_log([*world.entries, *[entry] * 20_000])
    with pytest.raises(UsageError, match="more than"):
        collected(world, log=large)
    result = check(collected(world, log=large, all_entries=False), partial=True)
    assert result.exit_code == ExitCode.INCONCLUSIVE, failures(result)


def test_archive_and_folder_come_back_as_they_were(world: World, tmp_path: Path) -> None:
    save_bundle(world.files, tmp_path / "a.tar")
    save_bundle(world.files, tmp_path / "folder")
    assert load_bundle(tmp_path / "a.tar") == load_bundle(tmp_path / "folder") == world.files
    assert (tmp_path / "a.tar").read_bytes() == make_archive(dict(reversed(world.files.items())))
    for path in (tmp_path / "a.tar", tmp_path / "folder"):
        with pytest.raises(UsageError, match="there already"):
            save_bundle(world.files, path)


def test_archive_can_be_unpacked_by_anybody(world: World, tmp_path: Path) -> None:
    save_bundle(world.files, tmp_path / "a.tar")
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "a.tar", "-C", tmp_path / "out"], check=True)
    assert load_bundle(tmp_path / "out") == world.files


def test_folder_with_a_link_or_another_file_is_refused(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    save_bundle(world.files, folder)
    link = folder / FIXED_NAMES[Role.CONTRACT_ENVELOPE]
    link.symlink_to("/etc/hostname")
    with pytest.raises(BundleError, match="link"):
        load_bundle(folder)
    link.unlink()
    (folder / "notes.txt").write_text("x")
    with pytest.raises(BundleError, match="name"):
        load_bundle(folder)
    (folder / "notes.txt").unlink()
    (folder / "audits" / "outside").symlink_to("..")
    with pytest.raises(BundleError, match="link"):
        load_bundle(folder)


def test_missing_bundle_is_a_matter_of_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        load_bundle(tmp_path / "nothing.tar")


@pytest.mark.parametrize(
    ("bound", "ppb"),
    [(None, None), (0.0, 0), (1e-10, 1), (0.25, 250_000_000), (2.0, 10**9), (float("inf"), None)],
)
def test_bounds_are_rounded_up(bound: float | None, ppb: int | None) -> None:
    assert bound_ppb(bound) == ppb


def test_verifying_needs_neither_network_nor_writer(world: World, tmp_path: Path) -> None:
    save_bundle(world.files, tmp_path / "a.tar")
    code = f"""
import socket, sys
def refuse(*_, **__):
    raise AssertionError("a socket")
socket.socket.connect = socket.socket.bind = socket.getaddrinfo = refuse
from kvward.cli.main import cli
sys.stdout.write(str(int(cli.main(
    ["verify", {str(tmp_path / "a.tar")!r}, "--key", {SIGNER.verifier.to_text()!r}, "--json"],
    standalone_mode=False,
))) + "\\n")
forbidden = ("aiohttp", "uvicorn", "kvward.audit.target", "kvward.gateway", "kvward.ledger.append",
    "kvward.ledger.writer", "kvward.ledger.sink", "kvward.ledger.keyfile", "kvward.ledger.fsck",
    "kvward.ledger.bundle.writing", "kvward.ledger.bundle.collecting", "kvward.cli.auditing")
print([name for name in sys.modules if name.startswith(forbidden)])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.endswith("}\n0\n[]\n"), done.stdout
