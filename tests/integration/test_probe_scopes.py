"""Probes that need more than two keys: another model, other weights, an erasure, a picture.

Each is tried on a lab that has the fault it looks for, and on one that has not.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fakes import FAKES
from kvward.audit.history import Arm, load_history
from kvward.audit.plan import Sizes, Tier
from kvward.audit.report import AuditReport
from kvward.audit.target import PRESETS, Control, ControlRequest, Controls, Target
from kvward.cli.audit import command
from kvward.cli.auditing import AuditRequest, check_means, run_audit
from kvward.cli.process import ServerProcess
from kvward.errors import ConfigError
from kvward.terms import Channel, ExitCode, Outcome, ProbeScope, SharingLevel

pytestmark = pytest.mark.timeout(120)
KEYS = {"a": "key-a", "b": "key-b"}
ADAPTERS = ("--adapter", "ada=1", "--adapter", "bob=2", "--allow-updates")
BY_KEY = ("--scope-by-key", "--blocks", "1024")


def erase(url: str) -> dict[Control, ControlRequest]:
    headers = {"authorization": "Bearer key-{tenant}"}
    request = ControlRequest(url=f"{url}/v1/cache/erase", method="POST", headers=headers, body={})
    return {Control.ERASE: request}


def reload(url: str, *, adapter: bool) -> dict[Control, ControlRequest]:
    name = {"lora_name": "{adapter}"} if adapter else {}
    path = "load_lora_adapter" if adapter else "load_weights"
    request = ControlRequest(
        url=f"{url}/v1/{path}", method="POST", headers={}, body={"seed": "{number}", **name}
    )
    return {Control.SWAP_ADAPTER: request}


def audit(url: str, folder: Path, *, crowd: int = 0, **more: Any) -> AuditReport:
    request = AuditRequest(
        url=url,
        keys=KEYS,
        model=None,
        tier=Tier.SMOKE,
        seed=11,
        channels=[Channel.METADATA],
        declared_level=SharingLevel.TENANT,
        clients=8,
        prompt_tokens=96,
        sizes=Sizes(content_outputs=0, control_outputs=0, pairs=12, crowd=crowd),
        **more,
    )
    result = asyncio.run(run_audit(request, folder=folder))
    assert result is not None
    return result[0]


def outcome(report: AuditReport, scope: ProbeScope) -> Outcome:
    return next(verdict.outcome for verdict in report.verdicts if verdict.scope is scope)


@pytest.mark.parametrize(
    ("defect", "expected"),
    [(None, Outcome.NOT_OBSERVED), ("erase-reported-only", Outcome.VIOLATED)],
)
def test_state_found_after_an_erasure_is_a_violation(
    tmp_path: Path, defect: str | None, expected: Outcome
) -> None:
    planted = () if defect is None else ("--defect", defect)
    with ServerProcess(["lab", "serve", *BY_KEY, *planted], log=tmp_path / "log") as server:
        report = audit(server.url, tmp_path, controls=Controls(erase(server.url)))
    assert outcome(report, ProbeScope.S6) is expected
    assert outcome(report, ProbeScope.S3) is Outcome.NOT_OBSERVED
    control = next(verdict for verdict in report.verdicts if verdict.is_control)
    assert control.outcome is Outcome.NOT_OBSERVED  # erasing one pair leaves the others alone


@pytest.mark.parametrize(
    ("defect", "expected"),
    [
        (None, Outcome.NOT_OBSERVED),
        ("adapter-missing", Outcome.VIOLATED),
        ("salt-adapter-ambiguous", Outcome.VIOLATED),
        ("adapter-reload-stale", Outcome.VIOLATED),
    ],
)
def test_state_of_another_model_is_a_violation(
    tmp_path: Path, defect: str | None, expected: Outcome
) -> None:
    planted = () if defect is None else ("--defect", defect)
    start = ["lab", "serve", "--blocks", "1024", *ADAPTERS, *planted]
    with ServerProcess(start, log=tmp_path / "log") as server:
        report = audit(
            server.url,
            tmp_path,
            other_model="ada",
            salted=True,
            controls=Controls(reload(server.url, adapter=True)),
        )
    assert outcome(report, ProbeScope.S4) is expected
    assert outcome(report, ProbeScope.S3) is Outcome.NOT_OBSERVED
    assert "S5" in " ".join(report.unplanned)
    reason = next(verdict.reason for verdict in report.verdicts if verdict.scope is ProbeScope.S4)
    only = {
        "salt-adapter-ambiguous": "4 of 4 where salt and model together read alike",
        "adapter-reload-stale": "4 of 4 with other weights under one name",
    }
    assert only.get(defect or "", "") in reason


@pytest.mark.parametrize(
    ("defect", "expected"),
    [(None, Outcome.NOT_OBSERVED), ("weights-reload-stale", Outcome.VIOLATED)],
)
def test_state_of_earlier_weights_is_a_violation(
    tmp_path: Path, defect: str | None, expected: Outcome
) -> None:
    planted = () if defect is None else ("--defect", defect)
    start = ["lab", "serve", *BY_KEY, "--allow-updates", *planted]
    with ServerProcess(start, log=tmp_path / "log") as server:
        controls = Controls(reload(server.url, adapter=False))
        report = audit(server.url, tmp_path, controls=controls)
    assert outcome(report, ProbeScope.S4) is expected


@pytest.mark.parametrize(
    ("defect", "crowd", "expected"),
    [
        (None, 1_200, Outcome.NOT_OBSERVED),
        ("media-missing", 0, Outcome.VIOLATED),
        ("media-shape-missing", 0, Outcome.VIOLATED),
        # Two of 1,200 names of 16 bits agree but for one run in 60,000.
        ("short-media-digest", 1_200, Outcome.VIOLATED),
    ],
)
def test_state_of_another_picture_is_a_violation(
    tmp_path: Path, defect: str | None, crowd: int, expected: Outcome
) -> None:
    planted = () if defect is None else ("--defect", defect)
    start = ["lab", "serve", "--scope-by-key", "--blocks", "4096", *planted]
    with ServerProcess(start, log=tmp_path / "log") as server:
        report = audit(server.url, tmp_path, pictures=True, crowd=crowd)
    assert outcome(report, ProbeScope.S7) is expected
    assert outcome(report, ProbeScope.S3) is Outcome.NOT_OBSERVED
    plan, trials = load_history(tmp_path / "history.jsonl")
    assert plan == report.plan
    assert sum(trial.arm is Arm.CROWD for trial in trials) == crowd == plan.num_crowd


def test_cell_is_planned_when_its_control_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ServerProcess(["lab", "serve", *BY_KEY], log=tmp_path / "log") as server:
        controls = tmp_path / "controls.toml"
        controls.write_text(
            f'version = 1\n[erase]\nurl = "{server.url}/v1/cache/erase"\nbody = {{}}\n'
            'headers = { authorization = "Bearer key-{tenant}" }\n'
        )
        done = CliRunner().invoke(
            command,
            [server.url, "--tenant", "a=key-a", "--tenant", "b=key-b", "--channel", "metadata",
             "--controls", str(controls), "--prompt-tokens", "96", "--json", "--seed", "1",
             "--out", "out"],
            standalone_mode=False,
        )  # fmt: skip
    assert done.return_value == ExitCode.NOT_OBSERVED, done.output
    cells = [(v["scope"], v["outcome"]) for v in json.loads(done.stdout)["verdicts"]]
    assert ("S6", "NOT_OBSERVED") in cells


def test_other_model_that_is_not_served_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    with (
        ServerProcess(["lab", "serve", *BY_KEY], log=tmp_path / "log") as server,
        pytest.raises(ConfigError, match="does not list a model nobody"),
    ):
        audit(server.url, tmp_path, other_model="nobody")
    assert not (tmp_path / "history.jsonl").exists()


@pytest.mark.parametrize(
    ("lives_s", "expected"), [(0.5, Outcome.NOT_OBSERVED), (600.0, Outcome.VIOLATED)]
)
def test_state_past_its_lifetime_is_a_violation(
    tmp_path: Path, lives_s: float, expected: Outcome
) -> None:
    async def run() -> AuditReport:
        fake = FAKES["vllm"]()
        fake.lives_s = lives_s
        async with fake.serving() as url:
            request = AuditRequest(
                url=url, keys={"a": fake.keys[0], "b": fake.keys[1]}, model=None, tier=Tier.SMOKE,
                seed=3, channels=[Channel.METADATA], declared_level=SharingLevel.TENANT, clients=1,
                prompt_tokens=96, lifetime_s=1.0,
                sizes=Sizes(content_outputs=0, control_outputs=0, pairs=12),
            )  # fmt: skip
            result = await run_audit(request, folder=tmp_path)
            assert result is not None
            return result[0]

    report = asyncio.run(run())
    assert outcome(report, ProbeScope.S6) is expected
    assert outcome(report, ProbeScope.S0) is Outcome.NOT_OBSERVED
    _, trials = load_history(tmp_path / "history.jsonl")
    late = [trial for trial in trials if trial.scope is ProbeScope.S6]
    ready = max(t.start_ns + t.total_ns for t in late if t.arm is Arm.PRIME)
    assert all(t.start_ns >= ready + 1_000_000_000 for t in late if t.arm is not Arm.PRIME)


@pytest.mark.parametrize(
    ("preset", "means", "words"),
    [
        ("ollama", {"salted": True}, "No field is known that salts"),
        ("openai", {"pictures": True}, "How a picture is sent to"),
    ],
)
def test_what_no_way_is_known_for_is_refused(
    preset: str, means: dict[str, Any], words: str
) -> None:
    target = Target(
        "http://127.0.0.1:1", KEYS, model="m", max_connections=1, preset=PRESETS[preset]
    )
    request = AuditRequest(
        url=target.url, keys=KEYS, model="m", tier=Tier.SMOKE, seed=1, channels=None,
        declared_level=None, clients=1, prompt_tokens=None, **means,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=words):
        check_means(request, target, [next(iter(target.preset.routes))])
