"""Plans, prompts and pairs: fixed before the first request, and what they say they are."""

import pytest

from audit_histories import small_plan
from kvward.audit.exchange import Ending, Reply
from kvward.audit.history import Arm, Redactor
from kvward.audit.load import iter_steps
from kvward.audit.pairs import iter_pairs
from kvward.audit.plan import BLOCK_TOKENS, TIER_SIZES, Tier, make_plan, planned_cells
from kvward.audit.prompts import write_canary_prompt, write_voice_prompt
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
    assert PLAN.num_statistical_cells == 10
    assert PLAN.evidence_threshold == pytest.approx(10_000)


def test_digest_names_everything_in_the_plan() -> None:
    again = small_plan()
    assert again.digest == PLAN.digest
    assert small_plan(pairs=41).digest != PLAN.digest
    assert small_plan(channels=[Channel.CONTENT]).digest != PLAN.digest


@pytest.mark.parametrize(
    "change",
    [
        {"tenants": ["a"]},
        {"tenants": ["a", "a"]},
        {"channels": []},
        {"clients": 0},
        {"prompt_tokens": 10},
        {"seed": -1},
    ],
    ids=str,
)
def test_plan_that_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    arguments: dict[str, object] = {
        "url": "u",
        "model": "m",
        "tenants": ["a", "b"],
        "tier": Tier.SMOKE,
        "seed": 1,
        "channels": list(Channel),
        "declared_level": None,
        "clients": 1,
        "prompt_tokens": 512,
    }
    make_plan(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        make_plan(**(arguments | change))  # type: ignore[arg-type]


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
    assert {step.arm for step in one} == {Arm.WRITE, Arm.READ, Arm.TWIN, Arm.CANCEL}
    assert 120 <= sum(step.num_outputs for step in one) <= 121
    lengths = {len(step.prompt.words) % BLOCK_TOKENS for step in one if step.arm is Arm.WRITE}
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
