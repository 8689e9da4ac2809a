"""Dialogues: how they are planned, and what of them is stale, dirty or lost in an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import comb

import pytest

from audit_histories import answer, clean_history, small_plan
from kvward.audit.canary.codebook import DIALOGUE_TURNS, GIVEN_UP_WORDS, TURN_WORDS, Codebook
from kvward.audit.detectors.content import Reading
from kvward.audit.detectors.turns import DIALOGUE_LEVEL, lost_turns, match_version
from kvward.audit.dialogue import Dialogue, Fate
from kvward.audit.evidence.dialogues import Dialogues, Turn
from kvward.audit.exchange import Call, Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.judge import judge
from kvward.audit.load import Step, iter_steps
from kvward.audit.placement import Placement
from kvward.audit.plan import BLOCK_TOKENS, Plan
from kvward.audit.prompts import open_dialogue, repeat_prompt, write_turn_prompt
from kvward.audit.sessions import audit_sessions
from kvward.audit.verdict import Verdict
from kvward.errors import ConfigError
from kvward.terms import Channel, Outcome, ProbeScope

PLAN = small_plan(channels=[Channel.CONTENT, Channel.DIFFERENTIAL])
SESSIONS = audit_sessions(PLAN)
DIALOGUES = [open_dialogue(PLAN.seed, SESSIONS[n % 8], number=n) for n in range(200)]
CLEAN = clean_history(PLAN)
TURNS = Dialogues(PLAN, CLEAN).turns


def content(trials: list[Trial], *, plan: Plan = PLAN) -> dict[ProbeScope, Verdict]:
    verdicts = judge(plan, trials, history_digest="h").verdicts
    return {v.scope: v for v in verdicts if v.channel is Channel.CONTENT}


def later_turn(fate: Fate) -> tuple[Turn, frozenset[str]]:
    """A turn that is asked after another version of a turn was given up, and that one's words."""
    for turn in TURNS:
        former = turn.dialogue.given_up
        if former is not None and former.fate is fate and turn.version.turn > former.turn:
            return turn, former.words
    raise AssertionError("the plan has none")


def showing(turn: Turn, change: Callable[[Trial], Trial]) -> list[Trial]:
    return [change(trial) if trial.number == turn.trial.number else trial for trial in CLEAN]


def answering(words: tuple[str, ...]) -> Callable[[Trial], Trial]:
    return lambda trial: replace(trial, top_logprobs=(answer(words),))


def mixed(turn: Turn, words: frozenset[str]) -> Callable[[Trial], Trial]:
    """As if a block of these words stood in the turn's prompt."""
    own = write_turn_prompt(turn.dialogue, turn.version).words
    return answering((*sorted(words), *own))


# How they are planned.


def test_prompt_of_a_turn_extends_the_one_before_and_ends_next_to_a_blocks_end() -> None:
    for dialogue in DIALOGUES:
        prompts = [write_turn_prompt(dialogue, version).words for version in dialogue.kept]
        for one, other in pairwise(prompts):
            assert other[: len(one)] == one
            assert len(other) >= len(one) + BLOCK_TOKENS - 2
        ends = [len(write_turn_prompt(dialogue, version).words) for version in dialogue.asked]
        assert {end % BLOCK_TOKENS for end in ends} <= {0, 1, BLOCK_TOKENS - 1}
    ends = [len(write_turn_prompt(d, v).words) % BLOCK_TOKENS for d in DIALOGUES for v in d.asked]
    assert {0, 1, BLOCK_TOKENS - 1} == set(ends)


def test_every_version_has_words_of_its_own_and_all_fit_into_an_answer() -> None:
    for dialogue in DIALOGUES:
        words = [word for version in dialogue.asked for word in version.words]
        assert len(set(words)) == len(words)
        assert len(words) <= DIALOGUE_TURNS * TURN_WORDS + GIVEN_UP_WORDS <= 18
        for version in dialogue.asked:
            assert set(version.text) == version.words
            for start in range(len(version.text) - 2 * GIVEN_UP_WORDS + 2):
                assert set(version.text[start : start + 2 * GIVEN_UP_WORDS - 1]) == version.words


def test_dialogues_are_edited_cancelled_and_left_alone_at_every_turn() -> None:
    fates = [d.given_up.fate if d.given_up else Fate.KEPT for d in DIALOGUES]
    assert {fate: fates.count(fate) > 15 for fate in Fate} == dict.fromkeys(Fate, True)
    assert {d.given_up.turn for d in DIALOGUES if d.given_up} == {1, 2, 3, 4}
    assert len({d.kept[0].words for d in DIALOGUES}) == 200
    for dialogue in DIALOGUES:
        asked = [version.turn for version in dialogue.asked]
        assert asked == sorted(asked)
        if dialogue.given_up is not None:
            assert dialogue.asked.index(dialogue.given_up) == dialogue.given_up.turn - 1


def test_one_output_in_five_is_a_turn_and_the_other_steps_stay_as_they_were() -> None:
    steps = list(iter_steps(PLAN, SESSIONS))
    held = [step for step in steps if isinstance(step, Dialogue)]
    assert 24 == PLAN.num_turn_outputs <= sum(step.num_outputs for step in held) <= 28
    without = replace(PLAN, cells=tuple(c for c in PLAN.cells if c.scope is not ProbeScope.S1))
    assert without.num_turn_outputs == 0
    old = list(iter_steps(without, SESSIONS))
    assert all(isinstance(step, Step) for step in old)
    rest = [step for step in steps if not isinstance(step, Dialogue)]
    assert rest == old[: len(rest)]


def test_recipe_of_a_turn_makes_its_prompt_again() -> None:
    for dialogue in DIALOGUES[:40]:
        for version in dialogue.asked:
            prompt = write_turn_prompt(dialogue, version)
            assert repeat_prompt(PLAN.seed, prompt.recipe, session=dialogue.session) == prompt
    alone = next(d for d in DIALOGUES if d.given_up is None)
    name = write_turn_prompt(alone, alone.kept[0]).recipe
    for recipe in (f"{name[:-1]}1", f"{name[:-1]}2", f"{name[:-3]}9:0", name[:-2]):
        with pytest.raises(ConfigError):
            repeat_prompt(PLAN.seed, recipe, session=alone.session)


def test_dialogue_stays_at_one_address() -> None:
    placement = Placement(replace(PLAN, replicas=("u", "v", "w")))
    call = Call(tenant="a", prompt="", max_tokens=1, conversation=None)
    places = [
        {
            placement.of_prompt(call, write_turn_prompt(dialogue, version)).replica
            for version in dialogue.asked
        }
        for dialogue in DIALOGUES[:20]
    ]
    assert {len(place) for place in places} == {1}
    assert set().union(*places) == {0, 1, 2}


# What is found in their answers.


def test_clean_dialogues_have_nothing_but_a_bound() -> None:
    verdict = content(CLEAN)[ProbeScope.S1]
    assert verdict.outcome is Outcome.NOT_OBSERVED
    assert verdict.events == 0
    assert not verdict.findings
    assert verdict.run >= verdict.planned == 24
    assert verdict.bound == pytest.approx((1 - 0.05 ** (1 / verdict.run)) / 0.05 ** (1 / 40))
    held = {control.name: (control.seen, control.tried) for control in verdict.controls}
    assert held["first turn seen behind reuse"][0] == held["first turn seen behind reuse"][1] > 0
    assert held["decoys named"][0] == 0


@pytest.mark.parametrize(
    ("fate", "name"), [(Fate.EDITED, "stale read"), (Fate.CANCELLED, "dirty read")]
)
def test_words_of_a_version_given_up_are_named_and_are_nobody_elses(fate: Fate, name: str) -> None:
    turn, words = later_turn(fate)
    found = content(showing(turn, mixed(turn, words)))
    assert {s for s, v in found.items() if v.outcome is Outcome.VIOLATED} == {ProbeScope.S1}
    assert found[ProbeScope.S3].outcome is Outcome.NOT_OBSERVED
    verdict = found[ProbeScope.S1]
    (finding,) = verdict.findings
    assert (finding.trial, finding.reader) == (turn.trial.number, turn.trial.who)
    assert finding.source == turn.trial.who
    assert set(finding.words) == words
    assert finding.note is not None
    assert finding.note.startswith(name)
    assert finding.probability == pytest.approx(1 / comb(256 - len(turn.own_words), 6))
    assert (verdict.events, verdict.reason[: len(name) + 2]) == (1, f"1 {name}")


def test_version_that_was_answered_before_its_client_went_away_is_stale_and_not_dirty() -> None:
    turn, words = later_turn(Fate.CANCELLED)
    trials = showing(turn, mixed(turn, words))
    trials = [replace(t, ending=Ending.DONE) if t.arm is Arm.CANCEL else t for t in trials]
    (finding,) = content(trials)[ProbeScope.S1].findings
    assert (finding.note or "").startswith("stale read")


def test_turn_that_is_missing_from_an_answer_is_a_lost_own_write() -> None:
    turn = next(t for t in TURNS if t.version.turn == 4 and t.trial.arm is Arm.TURN)
    for lost in turn.history:
        left = tuple(w for version in turn.history if version is not lost for w in version.text)
        verdict = content(showing(turn, answering(left)))[ProbeScope.S1]
        assert verdict.outcome is Outcome.VIOLATED
        (finding,) = verdict.findings
        assert f"lost own write: no word of turn {lost.turn}" in (finding.note or "")
        assert finding.source is None
        assert not finding.words


def test_answer_to_another_request_is_that_requests_and_no_lost_write() -> None:
    turn = next(t for t in TURNS if t.version.turn == 4 and t.trial.arm is Arm.TURN)
    other = next(s for s in SESSIONS if s.tenant != turn.trial.tenant)
    found = content(showing(turn, answering(other.canary)))
    assert found[ProbeScope.S3].outcome is Outcome.VIOLATED
    assert not found[ProbeScope.S1].findings


def test_words_of_another_dialogue_are_its_sessions() -> None:
    reader = next(t for t in TURNS if t.trial.tenant == "b" and t.trial.arm is Arm.TURN)
    writer = next(t for t in TURNS if t.trial.tenant == "a" and t.version.turn == 4)
    found = content(showing(reader, mixed(reader, writer.own_words - reader.own_words)))
    verdict = found[ProbeScope.S3]
    assert verdict.outcome is Outcome.VIOLATED
    assert [finding.source for finding in verdict.findings] == [writer.trial.who]
    assert found[ProbeScope.S0].outcome is Outcome.NOT_OBSERVED
    assert not found[ProbeScope.S1].findings


def test_nothing_is_stale_before_it_was_given_up_nor_where_it_is_asked() -> None:
    for turn in TURNS:
        former = turn.dialogue.given_up
        if former is not None and turn.version.turn < former.turn:
            found = content(showing(turn, mixed(turn, former.words)))
            assert not found[ProbeScope.S1].findings
            assert found[ProbeScope.S0].outcome is Outcome.VIOLATED  # of nobody who had sent it
            return
    raise AssertionError("the plan has none")


def test_few_words_of_a_version_given_up_are_not_told_from_chance() -> None:
    turn, words = later_turn(Fate.EDITED)
    found = content(showing(turn, mixed(turn, frozenset(sorted(words)[:3]))))
    assert not found[ProbeScope.S1].findings
    assert found[ProbeScope.S1].outcome is Outcome.INCONCLUSIVE
    assert "told from chance" in found[ProbeScope.S1].reason


def test_words_that_a_conversation_says_again_are_its_own() -> None:
    former = frozenset({"acorn", "actor", "adult", "agent", "alarm", "album"})
    own = ["acorn", "actor", "adult", "agent", "alarm", "album", "zebra"]
    shown = match_version(frozenset({"angle"}), former, own_words=own, num_comparisons=1)
    assert (shown.words, shown.probability, shown.named) == ((), 1.0, False)
    partly = match_version(
        frozenset({"agent", "alarm", "album"}), former, own_words=own[:3], num_comparisons=1
    )
    assert partly.words == ("agent", "alarm", "album")
    assert partly.probability == pytest.approx(1 / comb(253, 3))


def test_unreadable_answer_has_lost_nothing() -> None:
    dialogue = DIALOGUES[0]
    gone = Reading(foreign=frozenset(), measurable=False)
    assert lost_turns(gone, dialogue.kept) == ()
    second, third = dialogue.kept[1].words, frozenset([*dialogue.kept[2].words][:1])
    seen = Reading(foreign=frozenset(), measurable=True, own_seen=second | third)
    assert lost_turns(seen, dialogue.kept) == (1, 4)
    foreign = Reading(foreign=frozenset(), measurable=True, own_seen=third)
    assert lost_turns(foreign, dialogue.kept) == ()


@pytest.mark.parametrize(("outputs", "needed"), [(124, 5), (2_052, 6), (6_148, 6)])
def test_level_holds_for_the_whole_plan(outputs: int, needed: int) -> None:
    """So many of the six words name a version; one never sent is named once in two million."""
    version = Codebook(seed=1).dialogue_decoys(1)[0]
    own = [word for word in DIALOGUES[0].asked[0].words if word not in version]
    for size in range(1, 7):
        foreign = frozenset(sorted(version)[:size])
        overlap = match_version(foreign, version, own_words=own, num_comparisons=outputs)
        assert overlap.named is (size >= needed)
        exact = comb(6, size) / comb(256 - len(own), size)
        assert overlap.probability == pytest.approx(exact)
        assert not overlap.named or exact * outputs <= DIALOGUE_LEVEL


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: replace(t, top_logprobs=()) if t.arm is Arm.TURN else t, "could not be read"),
        (lambda t: replace(t, ending=Ending.FAILED) if t.arm is Arm.TURN else t, "completed"),
        (lambda t: replace(t, cached_tokens=0), "No reuse was seen at all"),
        (
            lambda t: replace(t, cached_tokens=0) if t.arm is Arm.TURN else t,
            "No answer of a dialogue reused state",
        ),
        (lambda t: None if t.arm is Arm.TURN and t.number > 120 else t, "planned trials"),
        (
            lambda t: replace(t, top_logprobs=()) if t.arm is Arm.CONTROL_READ else t,
            "read back 0 of 40",
        ),
    ],
    ids=["unreadable", "failed", "no reuse", "no reuse in dialogues", "stopped", "no control"],
)
def test_dialogues_that_tell_nothing_are_inconclusive(
    change: Callable[[Trial], Trial | None], why: str
) -> None:
    trials = [changed for trial in CLEAN if (changed := change(trial)) is not None]
    verdict = content(trials)[ProbeScope.S1]
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert why in verdict.reason


def test_history_without_dialogues_is_judged_as_before() -> None:
    cells = tuple(cell for cell in PLAN.cells if cell.scope is not ProbeScope.S1)
    old = replace(PLAN, cells=cells, format_version=3)
    found = content(clean_history(old), plan=old)
    assert list(found) == [ProbeScope.S0, ProbeScope.S2, ProbeScope.S3]
    assert {verdict.outcome for verdict in found.values()} == {Outcome.NOT_OBSERVED}
