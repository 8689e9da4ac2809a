"""`kvward audit` as a process of its own against a running engine, and what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engines.vllm_server import MODEL_NAME

STOCK_KEYS = {"a": "key-of-a", "b": "key-of-b"}  # for a stock server, which takes any
RECORD = os.environ.get("KVWARD_AUDIT_RESULT", "")
_KEPT = ("outcome", "events", "run", "planned", "failed", "bound", "e_value", "sensitivity")
_FLUSH = """
import pathlib, sys, time
asked, done = map(pathlib.Path, sys.argv[1:])
asked.touch()
while not done.exists():
    time.sleep(0.1)
"""


class Audit:
    """The report of `kvward audit`, and how it ended."""

    def __init__(self, code: int, report: dict[str, Any]) -> None:
        self.code = code
        self.report = report
        self.verdicts = {(v["scope"], v["channel"]): v for v in report["verdicts"]}

    def outcome(self, scope: str, channel: str) -> str:
        return str(self.verdicts[(scope, channel)]["outcome"])

    def outcomes(self, channel: str) -> dict[str, str]:
        return {s: self.outcome(s, c) for s, c in sorted(self.verdicts) if c == channel}

    def tiers(self) -> set[str]:
        return {verdict["tier"] for verdict in self.verdicts.values()}

    def cached_tokens(self, scope: str) -> set[int]:
        """How many reused tokens the findings of a scope name."""
        return {f["cached_tokens"] for f in self.verdicts[(scope, "metadata")]["findings"]}

    def is_read_by_its_owner(self) -> bool:
        """Whether an owner found its state again, so that reuse was there to be observed."""
        return all(c["held"] for c in self.verdicts[("S0", "metadata")]["controls"])

    def shared(self) -> str:
        """What another tenant and a forger were told of reuse, and what the owner was."""
        return " ".join(self.outcome(scope, "metadata") for scope in ("S0", "S3", "S5"))


def audit(url: str, keys: dict[str, str], folder: Path, *arguments: str, record: str = "") -> Audit:
    """Audit two tenants of a stack.

    Args:
        record: Name of this audit in the file that KVWARD_AUDIT_RESULT names, if it does.
    """
    command = [
        sys.executable, "-m", "kvward", "audit", url, "--json", "--seed", "11",
        "--out", str(folder), "--level", "conversation", "--model", MODEL_NAME,
        "--canary-model", "--clients", "8", "--prompt-tokens", "600", *arguments,
    ]  # fmt: skip
    for name in ("a", "b"):
        command += ["--tenant", f"{name}=env:KEY_{name}"]
    environment = os.environ | {f"KEY_{name}": keys[name] for name in ("a", "b")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.stdout, done.stderr[-2000:]
    found = Audit(done.returncode, json.loads(done.stdout))
    if record and RECORD:
        _record(Path(RECORD), record, found)
    return found


@contextlib.contextmanager
def restarts_on_demand(restart: Callable[[], None], folder: Path) -> Iterator[str]:
    """Yield a command that restarts an engine, which only this process can, and waits for it."""
    folder.mkdir(parents=True, exist_ok=True)
    asked, done, end = folder / "restart", folder / "restarted", threading.Event()

    def watch() -> None:
        while not end.wait(0.1):
            if asked.exists() and not done.exists():
                restart()
                done.touch()

    thread = threading.Thread(target=watch)
    thread.start()
    script = folder / "flush.py"
    script.write_text(_FLUSH)
    try:
        yield f"{sys.executable} {script} {asked} {done}"
    finally:
        end.set()
        thread.join()


def audit_behind_restart(
    restart: Callable[[], None],
    url: str,
    keys: dict[str, str],
    folder: Path,
    *arguments: str,
    tier: str = "disk",
    record: str = "",
) -> Audit:
    """Audit what lies in a tier that outlives a restart of the engine."""
    with restarts_on_demand(restart, folder) as command:
        return audit(
            url, keys, folder / "report", "--flush-device", command, "--cache-tier", tier,
            *arguments, record=record,
        )  # fmt: skip


def assert_metadata(found: Audit, **expected: str) -> None:
    outcomes = found.outcomes("metadata")
    assert {scope: outcomes[scope] for scope in expected} == expected, outcomes


def assert_content_not_observed(found: Audit) -> None:
    for channel in ("content", "differential"):
        assert set(found.outcomes(channel).values()) == {"NOT_OBSERVED"}, channel


def _record(path: Path, name: str, found: Audit) -> None:
    audits = json.loads(path.read_text()) if path.exists() else {}
    audits[name] = {
        "exit_code": found.code,
        "requests": found.report["num_trials"],
        "failed": found.report["num_failed"],
        "seconds": round(found.report["duration_s"]),
        "cells": {
            f"{channel} {scope}": {key: verdict[key] for key in _KEPT}
            | {"controls": verdict["controls"], "reason": verdict["reason"]}
            for (scope, channel), verdict in sorted(found.verdicts.items())
        },
        "reused_tokens": {
            scope: sorted(found.cached_tokens(scope))
            for scope, channel in found.verdicts
            if channel == "metadata"
        },
    }
    path.write_text(json.dumps(audits, indent=1, sort_keys=True) + "\n")
