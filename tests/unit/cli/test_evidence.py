"""`kvward ledger record`, `ledger bundle` and `verify` on made-up audits, without any server."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from attacks.forgery_bundle.world import SIGNER, made_up_plan, made_up_trials, make_audit
from click.testing import CliRunner, Result

from kvward.cli.main import cli
from kvward.cli.recording import STATEMENT_NAME, AuditLedger, read_entries
from kvward.contract import canonical_json, read_contract
from kvward.errors import (
    BundleError,
    ConfigError,
    ContractError,
    KeyUnavailableError,
    KvwardError,
    UsageError,
)
from kvward.ledger.audit_entry import plan_entry
from kvward.ledger.bundle.checking import CONTRACT_TYPE
from kvward.ledger.document import sha256_hex
from kvward.ledger.dsse import sign_envelope
from kvward.ledger.entry import PlanPublished, VerdictReached
from kvward.ledger.keyfile import load_log_key
from kvward.ledger.names import SeedSource
from kvward.terms import ExitCode

EXAMPLES = Path(__file__).parents[3] / "examples"


def kvward(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(
        cli, [str(part) for part in arguments], standalone_mode=False, catch_exceptions=True
    )
    if isinstance(result.exception, KvwardError):
        raise result.exception
    assert result.exception is None, result.exception
    return result


@pytest.fixture
def log(tmp_path: Path) -> Path:
    kvward("ledger", "init", tmp_path / "log", "--origin", "log.example/1")
    return tmp_path / "log"


@pytest.fixture
def key(log: Path) -> str:
    return load_log_key(log.with_name("log.key")).verifier.to_text()


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return audit_folder(tmp_path / "audit", seed=1)


def audit_folder(folder: Path, *, seed: int, began_unix_s: int = 1_700_000_000) -> Path:
    plan = made_up_plan(seed)
    files = make_audit(plan, made_up_trials(plan, leaks=False), contract_digest=None).files
    folder.mkdir()
    (folder / "history.jsonl").write_bytes(files.history)
    # When an audit began follows from nothing but its report.
    began = b'"started_unix_s": %d' % began_unix_s
    report, num_replaced = re.subn(rb'"started_unix_s": \d+', began, files.report)
    assert num_replaced == 1
    (folder / "report.json").write_bytes(report)
    return folder


def bundle(log: Path, audit: Path, *options: str | Path) -> Path:
    out = log.with_name("bundle.tar")
    kvward("ledger", "bundle", out, "--log", log, "--audit", audit, *options)
    return out


def verified(path: Path, *options: str | Path) -> tuple[int, dict[str, Any]]:
    result = kvward("verify", path, "--json", *options)
    return result.return_value, json.loads(result.output)


def told(value: dict[str, Any], standing: str) -> str:
    return " | ".join(step["told"] for step in value["steps"] if step["standing"] == standing)


def test_plan_that_was_published_first_is_shown_to_be(log: Path, tmp_path: Path, key: str) -> None:
    plan = made_up_plan(1)
    ledger = AuditLedger(log, key_file=None, contract_digest=None)
    ledger.publish_plan(plan.to_json(), seed_was_given=True)
    audit = audit_folder(tmp_path / "audit", seed=1, began_unix_s=int(time.time()))
    checkpoint = ledger.record(audit)
    assert checkpoint.size == 4
    published = read_entries(log)[0]
    assert isinstance(published, PlanPublished)
    assert published.seed_source is SeedSource.GIVEN
    code, value = verified(bundle(log, audit), "--key", key)
    assert code == 0, told(value, "fails")
    assert "The plan was logged before the first request" in told(value, "holds")


def test_finished_audit_is_recorded_and_its_plan_said_to_be_late(
    log: Path, audit: Path, key: str
) -> None:
    kvward("ledger", "record", "--log", log, "--audit", audit)
    kinds = [type(entry) for entry in read_entries(log)]
    assert kinds == [PlanPublished, VerdictReached, VerdictReached, VerdictReached]
    code, value = verified(bundle(log, audit), "--key", key)
    assert code == ExitCode.INCONCLUSIVE
    assert "logged after the audit had begun" in told(value, "not shown")
    text = kvward("verify", log.with_name("bundle.tar"), "--key", key).output
    assert text.rstrip().endswith("Nothing in it is wrong, and something is not shown: see above.")


def test_recording_twice_adds_nothing(log: Path, audit: Path) -> None:
    record = ("ledger", "record", "--log", log, "--audit", audit, "--json")
    first = json.loads(kvward(*record).output)
    assert first == {"origin": "log.example/1", "size": 4}
    assert json.loads(kvward(*record).output) == first


def test_keys_come_from_the_command_line_or_a_file(log: Path, audit: Path, key: str) -> None:
    kvward("ledger", "record", "--log", log, "--audit", audit)
    path = bundle(log, audit, "--key", key)
    keys = log.with_name("keys")
    keys.write_text(f"\n{key}\n\n")
    assert verified(path, "--key-file", keys)[0] == ExitCode.INCONCLUSIVE
    other = SIGNER.verifier.to_text()
    assert verified(path, "--key", other)[0] == ExitCode.EVIDENCE
    for data in (b"", b"\xff", b"x" * 70_000):
        keys.write_bytes(data)
        with pytest.raises(ConfigError):
            kvward("verify", path, "--key-file", keys)
    with pytest.raises(UsageError):
        kvward("verify", path, "--key", "nothing")


def test_contract_of_an_audit_goes_along_with_its_signature(
    log: Path, audit: Path, key: str, tmp_path: Path
) -> None:
    contract, envelope = EXAMPLES / "contract.toml", tmp_path / "contract.dsse.json"
    text = canonical_json(read_contract(contract))
    signer = load_log_key(log.with_name("log.key"))
    envelope.write_bytes(sign_envelope(text, CONTRACT_TYPE, signers=[signer]))
    kvward("ledger", "record", "--log", log, "--audit", audit, "--contract", contract)
    published = read_entries(log)[0]
    assert isinstance(published, PlanPublished)
    assert published.contract_digest == sha256_hex(text)
    path = bundle(log, audit, "--contract", contract, "--contract-envelope", envelope)
    _, value = verified(path, "--key", key)
    assert "The contract is signed, and the log names it." in told(value, "holds")
    with pytest.raises(BundleError, match="would not verify"):
        kvward("ledger", "bundle", tmp_path / "x", "--log", log, "--audit", audit)
    assert not (tmp_path / "x").exists()
    twice = tmp_path / "contract.json"
    twice.write_text('{"a":1,"a":2}')
    with pytest.raises(ContractError, match="twice"):
        kvward("ledger", "record", "--log", log, "--audit", audit, "--contract", twice)


def test_part_of_a_log_is_bundled_and_said_to_be_one(
    log: Path, audit: Path, key: str, tmp_path: Path
) -> None:
    other = audit_folder(tmp_path / "other", seed=2)
    older = tmp_path / "older.txt"
    older.write_bytes(kvward("ledger", "head", log).stdout_bytes)
    kvward("ledger", "record", "--log", log, "--audit", audit, "--audit", other)
    path = bundle(log, audit, "--audit-entries-only", "--since", older, "--json")
    code, value = verified(path, "--key", key)
    assert (code, "3 entries of the log are not here" in told(value, "fails")) == (4, True)
    code, value = verified(path, "--key", key, "--partial", "--known", older)
    assert code == ExitCode.INCONCLUSIVE
    assert value["plans_in_other_bundles"] == []
    assert len(value["plans_without_result"]) == 1


def test_what_cannot_be_recorded_or_bundled_is_said_in_words(
    log: Path, audit: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="statement"):
        bundle(log, audit)
    report = audit / "report.json"
    genuine = report.read_bytes()
    report.write_bytes(genuine.replace(b"NOT_OBSERVED", b"VIOLATED"))
    with pytest.raises(BundleError, match="not what its history gives"):
        kvward("ledger", "record", "--log", log, "--audit", audit)
    assert read_entries(log) == []
    report.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        kvward("ledger", "record", "--log", log, "--audit", audit)
    report.write_bytes(genuine)
    (audit / STATEMENT_NAME).mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        kvward("ledger", "record", "--log", log, "--audit", audit)
    with pytest.raises(KeyUnavailableError):
        AuditLedger(log, key_file=tmp_path / "nothing", contract_digest=None)


def test_bundle_is_never_written_over(log: Path, audit: Path) -> None:
    kvward("ledger", "record", "--log", log, "--audit", audit)
    path = bundle(log, audit)
    with pytest.raises(ConfigError, match="there already"):
        bundle(log, audit)
    with pytest.raises(ConfigError, match="larger"):
        kvward("verify", path, "--known", _large(log.with_name("large")))


def _large(path: Path) -> Path:
    path.write_bytes(bytes(2 << 20))
    return path


def test_plan_entry_says_who_chose_the_seed() -> None:
    for arguments, source in (
        ({}, SeedSource.DRAWN),
        ({"seed_was_given": True}, SeedSource.GIVEN),
        ({"third_party_seed": b"dice"}, SeedSource.THIRD_PARTY),
    ):
        entry = plan_entry("1" * 64, at_unix_ms=1, contract_digest=None, **arguments)  # type: ignore[arg-type]
        assert entry.seed_source is source
        assert (entry.seed_digest is None) == (source is not SeedSource.THIRD_PARTY)
