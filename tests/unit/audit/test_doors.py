"""Side doors: what their lists show, whose it is, and what is kept of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from audit_histories import clean_history, small_plan
from kvward.audit.canary.codebook import Session
from kvward.audit.canary.words import CODE_WORDS
from kvward.audit.doors import DoorWatch
from kvward.audit.evidence.doors import door_evidence
from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, HistoryFile, Redactor, Trial, load_history
from kvward.audit.judge import judge
from kvward.audit.listing import MAX_TEXTS, read_listing
from kvward.audit.plan import DOOR_ROUNDS
from kvward.audit.prompts import write_canary_prompt, write_probe_prompt, write_voice_prompt
from kvward.audit.report.text import finding_text
from kvward.audit.sessions import audit_sessions
from kvward.audit.target.side import Door, SideAnswer, SideRequest
from kvward.terms import Channel, Outcome, ProbeScope

PLAN = replace(small_plan(channels=[Channel.CONTENT]), doors=("slots",))
SESSIONS = audit_sessions(PLAN)
DOOR = Door(name="slots", request=SideRequest(path="/slots"))
REDACTOR = Redactor(CODE_WORDS)


def session(name: str) -> Session:
    return next(s for s in SESSIONS if f"{s.tenant}/{s.conversation}" == name)


def canary(name: str) -> str:
    return write_canary_prompt(PLAN.seed, session(name), num_words=80, nonce=5).text


def listed(*texts: str, **more: Any) -> bytes:
    slots = [{"id": number, "text": text} for number, text in enumerate(texts)]
    return json.dumps({"slots": slots} | more).encode()


def door_trial(*texts: str, tenant: str = "a", number: int = 900, **changes: Any) -> Trial:
    base = clean_history(PLAN)[0]
    listing = read_listing(listed(*texts), REDACTOR)
    return replace(
        base,
        number=number,
        arm=Arm.DOOR,
        tenant=tenant,
        conversation="c1",
        prompt="door:slots",
        own_words=(),
        top_logprobs=(),
        prompt_tokens=None,
        cached_tokens=None,
        listed=listing.texts,
        unread_lists=listing.num_unread,
        **changes,
    )


@pytest.mark.parametrize("name", ["b/c1", "b/c2", "b/c3", "b/c4"])
def test_canary_of_another_tenant_is_found_and_named(name: str) -> None:
    found = door_evidence(PLAN, [door_trial(canary(name), canary("a/c2"))])
    (finding,) = found.findings
    assert (finding.reader, finding.source, finding.trial) == ("a/c1", name, 900)
    own = {w for s in SESSIONS if s.tenant == "a" for w in (*s.canary, *s.voice)}
    assert finding.words
    assert own.isdisjoint(finding.words)
    assert set(finding.words) <= set(session(name).canary)
    assert finding.probability is not None
    assert finding.probability < 1e-9
    told = finding_text(finding)
    assert all(word in told for word in (name, "list of what is cached", *finding.words))


def test_filler_words_of_another_tenant_are_found() -> None:
    voice = write_voice_prompt(PLAN.seed, session("b/c3"), prefix_words=0, num_words=60, nonce=1)
    (finding,) = door_evidence(PLAN, [door_trial(voice.text)]).findings
    assert finding.source == "b/c3"


def test_own_sessions_strangers_and_probes_are_nobodys_leak() -> None:
    texts = [canary(f"a/c{number}") for number in (1, 2, 3, 4)]
    texts += [write_probe_prompt(PLAN.seed, num_words=512, nonce=str(n)).text for n in range(20)]
    texts += ["the quick brown horse and a lemon in my garden", "stop", ""]
    evidence = door_evidence(PLAN, [door_trial(*texts), door_trial(" ".join(texts))])
    assert evidence.findings == ()
    assert (evidence.num_asked, evidence.num_there, evidence.num_unread) == (2, 2, 0)


def test_refused_doors_are_counted_and_prove_nothing() -> None:
    trials = [door_trial(status=404), door_trial(status=403, ending=Ending.DONE)]
    evidence = door_evidence(PLAN, trials)
    assert (evidence.num_asked, evidence.num_there) == (2, 0)
    assert [(c.seen, c.tried) for c in evidence.controls] == [(0, 2)]


def test_one_list_makes_the_cell_violated_and_no_other_and_leaves_the_bound() -> None:
    clean = clean_history(PLAN)
    before = {v.scope: v for v in judge(PLAN, clean, history_digest="h").verdicts}
    trial = door_trial(canary("b/c2"), number=len(clean))
    after = {v.scope: v for v in judge(PLAN, [*clean, trial], history_digest="h").verdicts}
    assert {s: v.outcome for s, v in after.items()} == {
        ProbeScope.S0: Outcome.NOT_OBSERVED,
        ProbeScope.S1: Outcome.NOT_OBSERVED,
        ProbeScope.S2: Outcome.NOT_OBSERVED,
        ProbeScope.S3: Outcome.VIOLATED,
    }
    violated = after[ProbeScope.S3]
    assert "b/c2" in violated.reason
    assert violated.events == 1
    for scope, verdict in after.items():
        assert (verdict.planned, verdict.run, verdict.failed) == (
            before[scope].planned,
            before[scope].run,
            before[scope].failed,
        )
        assert verdict.bound == before[scope].bound
        assert verdict.sensitivity == before[scope].sensitivity


def test_clean_lists_change_no_verdict() -> None:
    clean = clean_history(PLAN)
    doors = [door_trial(canary("a/c1"), number=len(clean) + n) for n in range(9)]
    failed = door_trial(number=len(clean) + 9, ending=Ending.FAILED, status=500, error="HTTP 500")
    judged = judge(PLAN, [*clean, *doors, failed], history_digest="h")
    assert {v.outcome for v in judged.verdicts} == {Outcome.NOT_OBSERVED}


def test_door_violates_even_where_answers_cannot_be_read() -> None:
    """A list is a text: no canary model stands in between."""
    mute = clean_history(PLAN, change=lambda trial: replace(trial, top_logprobs=()))
    trial = door_trial(canary("b/c2"), number=len(mute))
    judged = {v.scope: v for v in judge(PLAN, [*mute, trial], history_digest="h").verdicts}
    assert judged[ProbeScope.S3].outcome is Outcome.VIOLATED
    assert judged[ProbeScope.S2].outcome is Outcome.INCONCLUSIVE


def test_verdict_says_how_many_lists_were_there() -> None:
    judged = judge(PLAN, [*clean_history(PLAN), door_trial(number=999)], history_digest="h")
    (control,) = [
        c
        for v in judged.verdicts
        if v.scope is ProbeScope.S3
        for c in v.controls
        if "list" in c.name
    ]
    assert (control.seen, control.tried) == (1, 1)


# What is read of an answer.


def test_foreign_text_is_kept_as_digests_beside_code_words_and_else_not_at_all() -> None:
    body = listed("<|user|>acorn,barrel <b>Geheimnis</b>", "nothing of ours: hunter2")
    listing = read_listing(body, REDACTOR)
    (text,) = listing.texts
    words = text.split()
    assert [w for w in words if not w.startswith("#")] == ["acorn", "barrel"]
    assert "Geheimnis" not in text
    assert "hunter" not in text


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\xfe", b"[" * 100_000, b'{"a":', b"null", b"3", b'{"a": [[[]]]}', b"[1, 2]"],
)
def test_whatever_else_is_answered_shows_nothing(body: bytes) -> None:
    assert read_listing(body, REDACTOR).texts == ()


def test_plain_text_is_read_line_by_line() -> None:
    listing = read_listing(b"slot 0: acorn barrel\nslot 1: camera", REDACTOR)
    assert [" ".join(w for w in t.split() if w[0] != "#") for t in listing.texts] == [
        "acorn barrel",
        "camera",
    ]


def test_token_ids_are_counted_and_not_read() -> None:
    listing = read_listing(
        json.dumps({"prompt": list(range(40)), "pair": [1, 2]}).encode(), REDACTOR
    )
    assert (listing.texts, listing.num_unread) == ((), 1)
    trial = replace(door_trial(), unread_lists=1)
    evidence = door_evidence(PLAN, [trial])
    assert [(c.seen, c.tried, c.held) for c in evidence.controls] == [(1, 1, True), (0, 1, False)]


def test_texts_of_one_answer_are_bounded() -> None:
    assert len(read_listing(listed(*["acorn"] * 500), REDACTOR).texts) == MAX_TEXTS


# Asking.


class FakeTarget:
    def __init__(self, *, status: int = 200, body: bytes = b"[]") -> None:
        self.status, self.body = status, body
        self.asked: list[tuple[str, str, int]] = []

    async def ask(
        self, tenant: str, request: SideRequest, *, conversation: str, replica: int = 0
    ) -> SideAnswer:
        self.asked.append((tenant, request.path, replica))
        error = None if self.status == 200 else f"HTTP {self.status}"
        return SideAnswer(status=self.status, start_ns=1, total_ns=2, body=self.body, error=error)


def watch(target: FakeTarget, *, plan: Any = PLAN, num_outputs: int = 400) -> list[Trial]:
    trials: list[Trial] = []

    async def run() -> None:
        doors = DoorWatch(plan, (DOOR,), target, trials.append)
        for _ in range(num_outputs):
            await doors.after_output()
        await doors.ask_all()

    asyncio.run(run())
    return trials


def test_every_door_is_asked_by_every_tenant_as_often_as_planned() -> None:
    target = FakeTarget()
    trials = watch(target)
    assert len(trials) == len(target.asked) == PLAN.num_door_requests == 2 * (DOOR_ROUNDS + 1)
    assert {tenant for tenant, *_ in target.asked} == {"a", "b"}
    assert {trial.arm for trial in trials} == {Arm.DOOR}


def test_replicas_have_doors_of_their_own() -> None:
    plan = replace(PLAN, replicas=("http://127.0.0.1:1", "http://127.0.0.1:2"))
    target = FakeTarget()
    trials = watch(target, plan=plan)
    assert len(trials) == plan.num_door_requests == 4 * (DOOR_ROUNDS + 1)
    assert {trial.replica for trial in trials} == {0, 1}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 501])
def test_door_that_is_not_there_is_asked_once_by_each_tenant(status: int) -> None:
    trials = watch(FakeTarget(status=status))
    assert len(trials) == 2
    assert all(trial.ending is Ending.DONE and trial.error is None for trial in trials)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_door_that_fails_is_asked_again_and_said(status: int) -> None:
    trials = watch(FakeTarget(status=status))
    assert len(trials) == PLAN.num_door_requests
    assert all(trial.ending is Ending.FAILED and trial.error for trial in trials)


def test_plan_without_doors_asks_none() -> None:
    target = FakeTarget()
    assert watch(target, plan=replace(PLAN, doors=())) == []
    assert target.asked == []
    assert replace(PLAN, doors=()).num_door_requests == 0


def test_history_of_a_door_is_redacted_and_read_back(tmp_path: Path) -> None:
    body = listed(canary("b/c1"), "acorn " + "secret of a stranger")
    trials = watch(FakeTarget(body=body), num_outputs=0)
    with HistoryFile(tmp_path / "h.jsonl") as history:
        history.write_plan(PLAN)
        for trial in trials:
            history.write(trial)
    raw = (tmp_path / "h.jsonl").read_text()
    assert "stranger" not in raw
    _, read = load_history(tmp_path / "h.jsonl")
    assert read == trials
    assert [f.source for f in door_evidence(PLAN, read[:1]).findings] == ["b/c1"]
