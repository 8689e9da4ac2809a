"""`kvward ledger`, from the first line to a proof that a stranger checks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvward.cli import main as main_module
from kvward.ledger.entry import (
    EntriesDropped,
    PlanPublished,
    VerdictReached,
    encode_entry,
)
from kvward.ledger.keyfile import load_log_key
from kvward.ledger.names import DropReason, SeedSource
from kvward.ledger.writer import LedgerWriter
from kvward.terms import ExitCode, Outcome
from ledgers import counted, digest_of


class Shell:
    """Runs commands as a shell would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capfd = monkeypatch, capfd

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["kvward", "ledger", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main_module.main()
        sys.stdout.flush()
        out, err = self._capfd.readouterr()
        return int(ended.value.code or 0), out, err


@pytest.fixture
def kvward_ledger(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capfd)


@pytest.fixture
def log(tmp_path: Path, kvward_ledger: Shell) -> tuple[Path, str]:
    folder = tmp_path / "log"
    code, vkey, said = kvward_ledger("init", folder, "--origin", "deployment/one")
    assert (code, vkey.count("\n")) == (0, 1)
    assert "log.key" in said
    fill(folder, 300)
    return folder, vkey.strip()


def fill(folder: Path, count: int) -> None:
    signer = load_log_key(folder.with_name("log.key"))
    with LedgerWriter(folder, signer, known=None) as writer:
        first = writer.checkpoint.size
        for number in range(first, first + count):
            writer.append(counted(number))


def as_json(output: tuple[int, str, str]) -> tuple[int, Any]:
    return output[0], json.loads(output[1])


def test_a_log_is_begun_once(tmp_path: Path, kvward_ledger: Shell) -> None:
    arguments = ("init", tmp_path / "l", "--origin", "a/b", "--key-file", tmp_path / "k", "--json")
    code, value = as_json(kvward_ledger(*arguments))
    assert code == 0
    assert value["origin"] == "a/b"
    assert value["verifier_key"].startswith("a/b+")
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o600
    assert kvward_ledger(*arguments)[0] == ExitCode.USAGE
    assert kvward_ledger("init", tmp_path / "m", "--origin", "not one")[0] == ExitCode.USAGE
    # A key that signed nothing does not stay.
    again = kvward_ledger("init", tmp_path / "l", "--origin", "a/b", "--key-file", tmp_path / "k2")
    assert again[0] == ExitCode.USAGE
    assert not (tmp_path / "k2").exists()


def test_a_whole_log_verifies(log: tuple[Path, str], kvward_ledger: Shell) -> None:
    folder, vkey = log
    code, out, err = kvward_ledger("verify", folder, "--key", vkey)
    assert code == 0
    assert "300 entries" in out
    assert "--known" in err
    kept = folder.with_name("kept")
    kept.write_text(kvward_ledger("head", folder)[1])
    fill(folder, 5)
    code, value = as_json(kvward_ledger("verify", folder, "--key", vkey, "--known", kept, "--json"))
    assert code == 0
    assert (value["size"], value["known_size"], value["entries"]) == (305, 300, {"count": 305})
    assert as_json(kvward_ledger("head", folder, "--json"))[1]["size"] == 305


def test_what_does_not_verify_is_exit_code_4(log: tuple[Path, str], kvward_ledger: Shell) -> None:
    folder, vkey = log
    kept = folder.with_name("kept")
    kept.write_text(kvward_ledger("head", folder)[1])
    _, other = kvward_ledger("init", folder.with_name("o"), "--origin", "deployment/one")[:2]
    assert kvward_ledger("verify", folder, "--key", other.strip())[0] == ExitCode.EVIDENCE
    code, _, err = kvward_ledger(
        "verify", folder.with_name("o"), "--key", vkey, "--key", other.strip(), "--known", kept
    )
    assert code == ExitCode.EVIDENCE
    assert "ledger.fork" in err
    path = folder / "tile" / "entries" / "000"
    path.write_bytes(path.read_bytes()[:-1])
    assert kvward_ledger("verify", folder, "--key", vkey)[0] == ExitCode.EVIDENCE
    assert kvward_ledger("export", folder, "--key", vkey)[0] == ExitCode.EVIDENCE
    code, out, _ = kvward_ledger("fsck", folder, "--key", vkey, "--repair")
    assert code == ExitCode.EVIDENCE
    assert "tile/entries/000" in out
    assert kvward_ledger("verify", folder, "--key", "nonsense")[0] == ExitCode.USAGE
    assert kvward_ledger("verify", folder)[0] == ExitCode.USAGE
    assert (
        kvward_ledger("verify", folder, "--key", vkey, "--known", folder / "x")[0] == ExitCode.USAGE
    )


def test_tiles_are_repaired(log: tuple[Path, str], kvward_ledger: Shell) -> None:
    folder, vkey = log
    (folder / "tile" / "0" / "000").unlink()
    assert kvward_ledger("verify", folder, "--key", vkey)[0] == ExitCode.EVIDENCE
    code, value = as_json(kvward_ledger("fsck", folder, "--json"))
    assert code == ExitCode.EVIDENCE
    assert value["damaged"] == ["tile/0/000"]
    code, out, _ = kvward_ledger("fsck", folder, "--repair")
    assert code == 0
    assert "mended" in out
    assert kvward_ledger("verify", folder, "--key", vkey)[0] == 0
    assert "as they should be" in kvward_ledger("fsck", folder)[1]


def test_proofs_are_printed_and_checked(
    log: tuple[Path, str], kvward_ledger: Shell, tmp_path: Path
) -> None:
    folder, vkey = log
    proof, kept = tmp_path / "proof.json", tmp_path / "kept"
    kept.write_text(kvward_ledger("head", folder)[1])
    fill(folder, 300)
    code, out, _ = kvward_ledger("prove", folder, 7)
    proof.write_text(out)
    assert code == 0
    code, out, _ = kvward_ledger("check-proof", proof, "--key", vkey)
    assert code == 0
    assert encode_entry(counted(7)).decode() in out
    proof.write_text(proof.read_text().replace('"index":7', '"index":8'))
    code, _, err = kvward_ledger("check-proof", proof, "--key", vkey)
    assert code == ExitCode.EVIDENCE
    assert "ledger.inclusion" in err
    proof.write_text(kvward_ledger("prove", folder, "--since", 300, "--key", vkey)[1])
    code, value = as_json(
        kvward_ledger("check-proof", proof, "--key", vkey, "--known", kept, "--json")
    )
    assert code == 0
    assert (value["old_size"], value["size"]) == (300, 600)
    assert "begins with" in kvward_ledger("check-proof", proof, "--key", vkey)[1]
    proof.write_text(kvward_ledger("prove", folder, "--since", 299)[1])
    code, _, err = kvward_ledger("check-proof", proof, "--key", vkey, "--known", kept)
    assert (code, "ledger.fork" in err) == (ExitCode.EVIDENCE, True)
    for wrong in ((), (7, "--since", 3), (600,), ("--since", 601)):
        assert kvward_ledger("prove", folder, *wrong)[0] == ExitCode.USAGE
    assert kvward_ledger("check-proof", tmp_path / "none", "--key", vkey)[0] == ExitCode.USAGE


def test_entries_are_exported_as_they_are(log: tuple[Path, str], kvward_ledger: Shell) -> None:
    folder, vkey = log
    code, out, _ = kvward_ledger("export", folder, "--key", vkey)
    assert code == 0
    assert out.splitlines() == [encode_entry(counted(number)).decode() for number in range(300)]
    assert kvward_ledger("export", folder)[1] == out


def test_what_the_log_says_of_itself_is_told(log: tuple[Path, str], kvward_ledger: Shell) -> None:
    folder, vkey = log
    signer = load_log_key(folder.with_name("log.key"))
    plan, other = digest_of(1), digest_of(2)
    with LedgerWriter(folder, signer, known=None) as writer:
        writer.append(
            PlanPublished(
                at_unix_ms=1,
                plan_digest=plan,
                contract_digest=None,
                seed_source=SeedSource.GIVEN,
                seed_digest=None,
            )
        )
        writer.append(
            VerdictReached(
                at_unix_ms=2,
                clause=None,
                channel=None,
                scope=None,
                tier=None,
                outcome=Outcome.INCONCLUSIVE,
                bound_ppb=None,
                plan_digest=other,
                history_digest=other,
                report_digest=other,
            )
        )
        writer.append(EntriesDropped(at_unix_ms=3, reason=DropReason.QUEUE_FULL, count=7))
    out = kvward_ledger("verify", folder, "--key", vkey)[1]
    assert f"never answered: {plan}" in out
    assert f"not planned before: {other}" in out
    assert "7 entries are not in it" in out
    (folder / "tile/entries/002").write_bytes(b"left over")
    code, out, _ = kvward_ledger("fsck", folder)
    assert code == ExitCode.EVIDENCE
    assert "tile/entries/002 lies beyond" in out
