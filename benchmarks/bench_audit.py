"""How fast the auditor reads, and how fast it judges.

Outputs per second with 16 and 64 clients against the lab, through the gateway and without, all
processes on this machine; the bar is 100 outputs a second against the bare lab. An output is a
prompt of several blocks and one generated token with logprobs. The auditor's own share is its
processor time against the time that passed; two cores are 2.

The auditor alone: the same plan is run against recorded answers, byte for byte as the lab streams
them and without a socket: written, placed, parsed, redacted, recorded, judged. Its bar is 2,000
outputs of one token a second; answers of the load have seven on the average.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from figures import Figure, publish
from kvward.audit.evidence.asked import Asked
from kvward.audit.exchange import Call, Ending, Reply
from kvward.audit.history import SIDE_ARMS, HistoryFile, Trial, load_history
from kvward.audit.judge import judge
from kvward.audit.plan import Plan, Sizes, Tier
from kvward.audit.run import AuditRun
from kvward.audit.target import PRESETS, ReplyReader, write_request
from kvward.audit.target.wire import Framing, iter_parts
from kvward.cli.auditing import HISTORY_NAME, AuditRequest, run_audit
from kvward.cli.process import ServerProcess
from kvward.terms import Channel
from soak_audit import prepare

SIZES = Sizes(content_outputs=1500, control_outputs=40, pairs=1)
LAB = replace(PRESETS["kvward-lab"], doors=(), saved_state=None)
KEY = "bench-key"


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys, policy = prepare(folder)
        few = measure(["lab", "serve"], keys, folder, clients=16)
        many = measure(["lab", "serve"], keys, folder, clients=64)
        edge = measure(["serve", "--config", str(policy), "--edge-only"], keys, folder, clients=16)
        warded = measure(["serve", "--config", str(policy)], keys, folder, clients=16)
        plan, trials = load_history(folder / HISTORY_NAME)
        alone = replay_per_s(plan, [first_token(trial) for trial in trials], folder)
        longer = replay_per_s(plan, trials, folder)
        began = time.perf_counter()
        judge(plan, trials, history_digest="")
        judged = len(trials) / (time.perf_counter() - began)
    unit = "outputs/s"
    return publish(
        "audit",
        [
            Figure(name="bare lab, 16 clients", value=few.per_s, unit=unit, bar=100),
            Figure(name="bare lab, 64 clients", value=many.per_s, unit=unit, bar=100),
            Figure(name="behind the gateway", value=edge.per_s, unit=unit, baseline=few.per_s),
            Figure(name="gateway and ward", value=warded.per_s, unit=unit, baseline=few.per_s),
            Figure(name="auditor's own share, 16", value=few.own_share, unit="processors"),
            Figure(name="auditor's own share, 64", value=many.own_share, unit="processors"),
            Figure(name="auditor alone, a token each", value=alone, unit=unit, bar=2000),
            Figure(name="auditor alone, as answered", value=longer, unit=unit),
            Figure(name="judge alone", value=judged, unit=unit),
        ],
    )


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Outputs read in a second, and the processor time that the auditor took of each second."""

    per_s: float
    own_share: float


def measure(arguments: list[str], keys: dict[str, str], folder: Path, *, clients: int) -> Speed:
    with ServerProcess(arguments, log=folder / "log") as server:
        request = AuditRequest(
            url=server.url,
            keys=keys,
            model=None,
            tier=Tier.SMOKE,
            seed=1,
            channels=[Channel.CONTENT],
            declared_level=None,
            clients=clients,
            prompt_tokens=512,
            sizes=SIZES,
        )
        began, used = time.perf_counter(), time.process_time()
        result = asyncio.run(run_audit(request, folder=folder))
        passed, used = time.perf_counter() - began, time.process_time() - used
    if result is None or result[0].num_failed:
        raise SystemExit("requests failed")
    report, trials = result
    return Speed(per_s=len(trials) / report.duration_s, own_share=used / passed)


def first_token(trial: Trial) -> Trial:
    """Return a trial whose answer ended after its first token."""
    return replace(trial, text=trial.text[:1], top_logprobs=trial.top_logprobs[:1])


def replay_per_s(plan: Plan, trials: list[Trial], folder: Path) -> float:
    """Run the plan again on what it was answered, and judge that."""
    plan = replace(plan, doors=(), saves_state=False)
    target = Recorded(plan, trials)

    async def no_change(_: object) -> None:
        raise SystemExit("nothing is changed in this plan")

    began = time.perf_counter()
    with HistoryFile(folder / "again.jsonl") as history:
        history.write_plan(plan)
        run = AuditRun(
            plan,
            target,  # type: ignore[arg-type]  # it only sends
            history,
            on_progress=lambda _: None,
            change=no_change,
        )
        again = asyncio.run(run.run())
        judge(plan, again, history_digest=history.digest)
    return len(again) / (time.perf_counter() - began)


class Recorded:
    """Answers each prompt with what it was answered before, as the bytes of a stream."""

    preset = LAB

    def __init__(self, plan: Plan, trials: list[Trial]) -> None:
        asked = Asked(plan)
        self._answers = {
            " ".join(asked.words(trial)): write_answer(trial)
            for trial in trials
            if trial.ending is Ending.DONE and trial.arm not in SIDE_ARMS
        }
        self._any = next(iter(self._answers.values()))

    async def send(self, call: Call) -> Reply:
        write_request(LAB, call, model="canary", stream=True, key=KEY)
        # What was only cancelled has no answer on record; any other is as long to read.
        body = self._answers.get(call.prompt, self._any)
        reading = ReplyReader(time.perf_counter_ns(), shape=LAB.routes[call.route].shape)
        reading.status = 200

        async def chunks() -> AsyncIterator[bytes]:
            yield body

        async for part in iter_parts(chunks(), Framing.EVENTS):
            reading.take(part)
        return reading.to_reply(Ending.DONE, route=call.route)


def write_answer(trial: Trial) -> bytes:
    """Return an answer as the lab streams it."""
    events: list[object] = [
        {
            "id": "cmpl-1",
            "model": "canary",
            "choices": [{"text": word, "logprobs": {"top_logprobs": [dict(position)]}}],
        }
        for word, position in zip(trial.text.split() or ["x"], trial.top_logprobs, strict=False)
    ]
    details = {"cached_tokens": trial.cached_tokens or 0}
    events.append(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": trial.prompt_tokens,
                "completion_tokens": 1,
                "prompt_tokens_details": details,
            },
        }
    )
    parts = [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]
    return b"".join([*parts, b"data: [DONE]\n\n"])


if __name__ == "__main__":
    sys.exit(main())
