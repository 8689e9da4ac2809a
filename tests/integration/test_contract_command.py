"""`kvward contract` as somebody calls it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from audit_commands import audit
from contract_documents import EXAMPLE, example, with_value
from kvward.cli.contract import command
from kvward.cli.main import exit_code_of
from kvward.cli.process import ServerProcess
from kvward.errors import KvwardError
from kvward.terms import ExitCode


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    if isinstance(done.exception, KvwardError):
        return exit_code_of(done.exception), done.exception.message
    assert done.exception is None, done.exception
    return int(done.return_value or 0), done.output


def written(folder: Path, path: str, value: object) -> str:
    file = folder / "new.json"
    file.write_bytes(msgspec.json.encode(with_value(example(), path, value)))
    return str(file)


def test_example_lints_clean_and_what_is_wrong_ends_with_3(tmp_path: Path) -> None:
    code, out = run("lint", str(EXAMPLE), "--today", "2026-12-03")
    assert (code, "0 errors, 0 warnings." in out) == (0, True)
    wrong = written(tmp_path, "clauses.failure.on_loss", "share")
    code, out = run("lint", wrong, "--today", "2026-12-03", "--json")
    assert code == ExitCode.USAGE
    (remark,) = json.loads(out)["remarks"]
    assert (remark["severity"], remark["clause"]) == ("error", "failure")


@pytest.mark.parametrize(
    ("path", "value", "code", "words"),
    [
        ("version", 2, ExitCode.NOT_OBSERVED, "scope          equal"),
        ("clauses.lifetime.max_age_s", 1, ExitCode.NOT_OBSERVED, "greatest age: 86,400 s -> 1 s"),
        ("clauses.scope.routes.0.level", "tenant", ExitCode.VIOLATED, "conversation -> tenant"),
        ("clauses.untrusted.on_bad_state", "refuse", ExitCode.INCONCLUSIVE, "unknown"),
        ("deployment", "other", ExitCode.USAGE, "new.json of other"),
    ],
)
def test_diff_says_what_moved_and_ends_accordingly(
    tmp_path: Path, path: str, value: object, code: ExitCode, words: str
) -> None:
    new = written(tmp_path, path, value)
    done, out = run("diff", str(EXAMPLE), new)
    assert (done, words in out) == (code, True), out
    if code is not ExitCode.USAGE:
        clauses = json.loads(run("diff", str(EXAMPLE), new, "--json")[1])["clauses"]
        assert len(clauses) == 12


def test_schema_is_printed() -> None:
    assert json.loads(run("schema")[1])["$id"] == "urn:kvward:contract-v1"


@pytest.mark.timeout(240)
def test_audits_of_a_clean_and_a_leaking_engine_stand_beside_the_contract(tmp_path: Path) -> None:
    keys = {"a": "contract-key-1", "b": "contract-key-2"}
    for name, options in (("clean", ["--scope-by-key"]), ("leaking", [])):
        with ServerProcess(["lab", "serve", *options], log=tmp_path / f"{name}.log") as server:
            audit(server.url, keys, tmp_path / name, "--channel", "metadata")
    standings = {}
    for name in ("clean", "leaking"):
        code, out = run("check", str(EXAMPLE), str(tmp_path / name), "--json")
        rows = json.loads(out)["clauses"]
        standings[name] = {(one["clause"], one["tier"]): one["standing"] for one in rows}
        assert code == (ExitCode.INCONCLUSIVE if name == "clean" else ExitCode.VIOLATED)
    for clause in ("scope", "metadata", "origin"):
        assert standings["clean"][clause, "device"] == "shown"
        assert standings["leaking"][clause, "device"] == "contradicted"
    assert standings["clean"]["scope", "disk"] == "not tested"
    (tmp_path / "clean" / "report.json").write_bytes(
        (tmp_path / "leaking" / "report.json").read_bytes()
    )
    code, out = run("check", str(EXAMPLE), str(tmp_path / "clean"))
    assert (code, "another audit" in out) == (ExitCode.EVIDENCE, True)
