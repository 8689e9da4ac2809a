"""Plans, prompts and pairs: fixed before the first request, and what they say they are."""

from typing import Any

import pytest

from audit_histories import small_plan
from kvward.audit.elicitation import TEXT_TOKENS
from kvward.audit.exchange import Ending, Reply
from kvward.audit.history import Arm, Redactor
from kvward.audit.load import Step, iter_steps
from kvward.audit.pairs import Change, iter_pairs, period_of
from kvward.audit.plan import BLOCK_TOKENS, TIER_SIZES, Elicitation, Plan, Tier
from kvward.audit.planning import make_plan, make_salts, planned_cells
from kvward.audit.prompts import repeat_prompt, write_canary_prompt, write_lines, write_voice_prompt
from kvward.audit.sessions import audit_sessions
from kvward.errors import ConfigError
from kvward.terms import Channel, ProbeScope, SharingLevel

PLAN = small_plan()
SESSIONS = audit_sessions(PLAN)


def scopes(level: SharingLevel | None, channel: Channel) -> list[ProbeScope]:
    return [c.scope for c in planned_cells(list(Channel), declared_level=level)
            if c.channel is channel]  # fmt: skip


def test_reuse_inside_a_tenant_is_a_question_of_the_declared_level() -> None:
    with_s2 = [ProbeScope.S0, ProbeScope.S2, ProbeScope.S3, ProbeScope.S5]
    without = [ProbeScope.S0, ProbeScope.S3, ProbeScope.S5]
    for channel in (Channel.METADATA, Channel.TIMING):
        assert scopes(None, channel) == without
        assert scopes(SharingLevel.TENANT, channel) == without
        assert scopes(SharingLevel.CONVERSATION, channel) == with_s2
    for level in (None, *SharingLevel):
        assert ProbeScope.S2 in scopes(level, Channel.CONTENT)


def test_error_rate_is_shared_by_all_cells_but_the_controls() -> None:
    assert PLAN.num_statistical_cells == 11
    assert PLAN.evidence_threshold == pytest.approx(11_000)


def test_digest_names_everything_in_the_plan() -> None:
    again = small_plan()
    assert again.digest == PLAN.digest
    assert small_plan(pairs=41).digest != PLAN.digest
    assert small_plan(channels=[Channel.CONTENT]).digest != PLAN.digest


def plan_of(**more: object) -> Plan:
    arguments: dict[str, object] = {
        "url": "u",
        "model": "m",
        "tenants": ["a", "b"],
        "tier": Tier.SMOKE,
        "seed": 1,
        "channels": [Channel.METADATA],
        "declared_level": None,
        "clients": 1,
        "prompt_tokens": 512,
        "run_nonce": "n",
    }
    return make_plan(**(arguments | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"tenants": ["a"]},
        {"tenants": ["a", "a"]},
        {"channels": []},
        {"clients": 0},
        {"prompt_tokens": 10},
        {"seed": -1},
        {"other_model": "m"},
        {"lifetime_s": -1.0},
    ],
    ids=str,
)
def test_plan_that_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    plan_of()
    with pytest.raises(ConfigError):
        plan_of(**change)


def test_every_tier_looks_at_more_than_the_one_before() -> None:
    sizes = [TIER_SIZES[tier] for tier in Tier]
    assert sizes[0].content_outputs < sizes[1].content_outputs < sizes[2].content_outputs
    assert sizes[1].content_outputs >= 9_985  # bounds a rate of 3e-4 at 95 %


def test_every_full_block_of_a_canary_prompt_holds_the_whole_canary() -> None:
    for nonce in range(5):
        words = write_canary_prompt(1, SESSIONS[0], num_words=330, nonce=nonce).words
        assert len(words) == 330
        for start in range(0, 320, BLOCK_TOKENS):
            assert set(words[start : start + BLOCK_TOKENS]) == set(SESSIONS[0].canary)


def test_two_canary_prompts_differ_from_the_first_block_on() -> None:
    firsts = {
        write_canary_prompt(1, SESSIONS[0], num_words=64, nonce=nonce).words[:BLOCK_TOKENS]
        for nonce in range(200)
    }
    assert len(firsts) == 200


def test_voice_prompts_share_exactly_their_prefix() -> None:
    one = write_voice_prompt(1, SESSIONS[0], prefix_words=144, num_words=170, nonce=1).words
    two = write_voice_prompt(1, SESSIONS[0], prefix_words=144, num_words=170, nonce=2).words
    assert one[:144] == two[:144]
    assert one[144:] != two[144:]
    assert set(one) <= set(SESSIONS[0].voice)


def test_load_is_the_same_for_the_same_seed_and_has_all_arms() -> None:
    one, two = list(iter_steps(PLAN, SESSIONS)), list(iter_steps(PLAN, SESSIONS))
    assert one == two
    assert 120 <= sum(step.num_outputs for step in one) <= 124
    steps = [step for step in one if isinstance(step, Step)]
    assert {step.arm for step in steps} == {Arm.WRITE, Arm.READ, Arm.TWIN, Arm.CANCEL}
    lengths = {len(step.prompt.words) % BLOCK_TOKENS for step in steps if step.arm is Arm.WRITE}
    assert {0, 1, BLOCK_TOKENS - 1} <= lengths


def test_pairs_are_fair_and_their_prompts_are_fresh() -> None:
    pairs = list(iter_pairs(PLAN))
    assert len(pairs) == PLAN.sizes.pairs * len(PLAN.pair_scopes)
    assert 60 < sum(pair.coin == 1 for pair in pairs) < 100
    assert 60 < sum(pair.first == 1 for pair in pairs) < 100
    texts = [prompt.text for pair in pairs for prompt in pair.prompts]
    assert len(set(texts)) == len(texts)
    for pair in pairs:
        within = pair.scope in {ProbeScope.S0, ProbeScope.S2}
        assert (pair.writer == pair.reader) is within


def test_lines_hold_every_word_and_are_made_again_from_their_recipe() -> None:
    lines = write_lines(1, SESSIONS[0], of_canary=True, prefix_lines=0, num_lines=4, nonce=9)
    rows = [row.split() for row in lines.text.split("\n")]
    assert len(rows) == 4
    assert rows == [rows[0]] * 4
    assert set(rows[0]) == set(SESSIONS[0].canary)
    assert repeat_prompt(1, lines.recipe, session=SESSIONS[0]) == lines
    other = write_lines(1, SESSIONS[0], of_canary=True, prefix_lines=0, num_lines=4, nonce=10)
    assert other.words != lines.words
    one, two = (
        write_lines(1, SESSIONS[0], of_canary=False, prefix_lines=3, num_lines=5, nonce=nonce).words
        for nonce in (1, 4)
    )
    assert one[:18] == two[:18]
    assert one != two


def test_load_for_any_other_model_is_of_lines_and_long_answers() -> None:
    plan = plan_of(channels=[Channel.CONTENT], elicitation=Elicitation.TEXT)
    assert ProbeScope.S1 not in {cell.scope for cell in plan.cells}
    steps = [step for step in iter_steps(plan, SESSIONS) if isinstance(step, Step)]
    assert sum(step.num_outputs for step in steps) >= plan.sizes.content_outputs
    assert {step.prompt.recipe.split(":")[0] for step in steps} == {"lines"}
    assert {step.max_tokens for step in steps} == {TEXT_TOKENS}


def test_words_keep_nothing_of_what_is_written_around_them() -> None:
    redactor = Redactor(frozenset({"acorn", "birch"}))
    assert redactor.text("Acorn, (birch).") == "acorn birch"
    assert redactor.text("Mrs. Miller").count("#") == 2


def test_words_that_are_not_ours_are_redacted() -> None:
    redactor = Redactor(frozenset({"acorn"}))
    reply = Reply(
        ending=Ending.DONE,
        status=200,
        start_ns=0,
        ttft_ns=1,
        total_ns=1,
        top_logprobs=(((" acorn", -1.0), (" Mrs Miller", -2.0)),),
    )
    ((kept, redacted),) = redactor.top_logprobs(reply)
    assert kept == ("acorn", -1.0)
    assert redacted[0].startswith("#")
    assert "Miller" not in redacted[0]
    assert redactor.text(" acorn Miller") == "acorn " + redactor.token("Miller")


def test_only_what_the_operator_named_is_planned_besides_the_usual_scopes() -> None:
    usual = (ProbeScope.S0, ProbeScope.S3, ProbeScope.S5)
    assert plan_of().pair_scopes == usual
    assert plan_of(other_model="x").pair_scopes == (*usual[:2], ProbeScope.S4, *usual[2:])
    assert plan_of(reloads=True).pair_scopes == (*usual[:2], ProbeScope.S4, *usual[2:])
    assert plan_of(erases=True).pair_scopes == (*usual, ProbeScope.S6)
    assert plan_of(pictures=True).pair_scopes == (*usual, ProbeScope.S7)
    assert plan_of(salted=True).pair_scopes == usual[:2]  # whoever salts may claim any scope


def pairs_of(scope: ProbeScope, **more: object) -> list[Any]:
    return [pair for pair in iter_pairs(plan_of(**more)) if pair.scope is scope]


def test_other_model_is_asked_in_both_directions_and_by_one_tenant() -> None:
    pairs = pairs_of(ProbeScope.S4, other_model="x")
    assert {pair.models for pair in pairs} == {(None, "x"), ("x", None)}
    assert all(pair.writer == pair.reader and pair.change is None for pair in pairs)


def test_reload_asks_one_name_before_and_after() -> None:
    assert {(p.models, p.change) for p in pairs_of(ProbeScope.S4, reloads=True)} == {
        ((None, None), Change.RELOAD)
    }
    both = pairs_of(ProbeScope.S4, reloads=True, other_model="x")
    reloaded = [pair for pair in both if pair.change is Change.RELOAD]
    assert {pair.models for pair in reloaded} == {("x", "x")}
    assert 10 < len(reloaded) < 30


def test_tenants_salts_differ_by_the_other_models_name() -> None:
    pairs = pairs_of(ProbeScope.S4, other_model="x", salted=True)
    across = [pair for pair in pairs if pair.writer != pair.reader]
    salts = plan_of(other_model="x", salted=True).salts
    assert len(across) == len(pairs) // 2
    for pair in across:
        joined = {salts[who] + (model or "") for who, model in
                  ((pair.writer, pair.models[0]), (pair.reader, pair.models[1]))}  # fmt: skip
        assert len(joined) == 1
        assert salts[pair.writer] != salts[pair.reader]


def test_salts_are_different_and_can_be_sent_whatever_the_model_is_called() -> None:
    for name in ("", "ada", "org/model@1", "x" * 200):
        salts = make_salts(["a", "b", "c"], "nonce", name)
        assert len(set(salts.values())) == 3
        assert all(len(salt) <= 128 + 64 and "/" not in salt for salt in salts.values())


def test_pairs_of_a_period_apart_are_of_one_kind() -> None:
    for more in ({"other_model": "x"}, {"reloads": True}, {"other_model": "x", "reloads": True},
                 {"other_model": "x", "salted": True},
                 {"other_model": "x", "salted": True, "reloads": True}):  # fmt: skip
        pairs = pairs_of(ProbeScope.S4, **more)
        period = period_of(ProbeScope.S4)
        for one, other in zip(pairs, pairs[period:], strict=False):
            assert (one.models, one.change) == (other.models, other.change)
            assert (one.writer == one.reader) is (other.writer == other.reader)


def test_pictures_of_a_pair_differ_in_bytes_or_in_shape_alone() -> None:
    pairs = pairs_of(ProbeScope.S7, pictures=True)
    drawn = set()
    for pair in pairs:
        for written, read in pair.images:
            assert written != read
            assert (written.pixels == read.pixels) is bool(pair.number % 2)
            assert len(read.pixels) == 2 * read.width * read.height
            drawn.add(written.pixels)
    assert len(drawn) == 2 * len(pairs)


def test_erased_pair_stays_inside_a_conversation() -> None:
    pairs = pairs_of(ProbeScope.S6, erases=True)
    assert all(pair.change is Change.ERASE and pair.writer == pair.reader for pair in pairs)
    both = pairs_of(ProbeScope.S6, erases=True, lifetime_s=1.0)
    assert [pair.change for pair in both[:2]] == [Change.ERASE, Change.EXPIRE]
