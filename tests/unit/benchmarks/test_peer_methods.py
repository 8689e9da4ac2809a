"""What the benchmark of other auditors decides, on what must be detected and what must not."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peer_methods import gu, promptfoo, sectum, sectum_keys
from benchmarks.peer_methods.answer import Says

from kvward.audit.canary.words import WORDS

RECORDED = Path(__file__).parents[3] / "benchmarks" / "data" / "gu2025_prompt_cache_times.json"


def times(seed: int, *, mean_ms: float) -> list[float]:
    chance = random.Random(seed)
    return [max(0.001, chance.gauss(mean_ms, 4.0)) / 1e3 for _ in range(gu.NUM_SAMPLES)]


def test_gu_detects_faster_hits() -> None:
    sharing = gu.decide_sharing(gu.Samples(hit=times(1, mean_ms=12.0), miss=times(2, mean_ms=40.0)))
    assert sharing.is_detected
    assert sharing.hit_median_s < sharing.miss_median_s


@pytest.mark.parametrize("hit_ms", [40.0, 39.0, 80.0])
def test_gu_detects_no_equal_nearly_equal_or_slower_hits(hit_ms: float) -> None:
    samples = gu.Samples(hit=times(1, mean_ms=hit_ms), miss=times(2, mean_ms=40.0))
    assert not gu.decide_sharing(samples).is_detected


def test_gu_detects_no_more_than_the_first_few_hits_can_show() -> None:
    samples = gu.Samples(hit=times(1, mean_ms=12.0)[:5], miss=times(2, mean_ms=40.0)[:5])
    assert not gu.decide_sharing(samples).is_detected


def test_gu_decides_the_recorded_cases_as_their_paper_does() -> None:
    cases = json.loads(RECORDED.read_text(encoding="utf-8"))
    detected = [
        gu.decide_sharing(
            gu.Samples(hit=case["cache_hit_client_time_s"], miss=case["cache_miss_client_time_s"])
        ).is_detected
        for case in cases
    ]
    assert (len(detected), sum(detected)) == (62, 29)


@pytest.mark.parametrize("shared", [True, False])
def test_gu_sends_as_many_of_both_arms_and_tells_a_shared_cache(*, shared: bool) -> None:
    chance, seen = random.Random(3), dict[str, set[str]]()
    sent: list[str] = []

    def time_request(key: str, prompt: str) -> float:
        sent.append(key)
        words = prompt.split()
        assert len(words) == gu.PROMPT_WORDS
        prefix = " ".join(words[:16])
        cache = seen.setdefault("all" if shared else key, set())
        known = prefix in cache
        cache.add(prefix)
        return chance.gauss(0.012 if known else 0.040, 0.002)

    samples = gu.take_samples(time_request, victim="v", attacker="a", seed=7)
    assert len(samples.hit) == len(samples.miss) == gu.NUM_SAMPLES
    assert (sent.count("v"), sent.count("a")) == (gu.NUM_SAMPLES, 2 * gu.NUM_SAMPLES)
    assert gu.decide_sharing(samples).is_detected is shared


def test_gu_follows_a_prompt_for_its_first_95_percent() -> None:
    chance = random.Random(1)
    prompt = " ".join(chance.choices(WORDS, k=gu.PROMPT_WORDS))
    words, followed = prompt.split(), gu.follow_prompt(chance, prompt).split()
    assert len(followed) == len(words)
    assert followed[:486] == words[:486]
    assert followed[486:] != words[486:]


def test_sectum_spelling_keeps_how_far_prompts_begin_alike() -> None:
    one, two, other = (
        sectum_keys.spell(text, WORDS).split()
        for text in (
            "tenant-ab-session probe 1",
            "tenant-ab-session probe 2",
            "unrelated-ab probe 1",
        )
    )
    assert len(one) == len(two) == len(other) == 384 + 16 + 16
    assert one[:400] == two[:400]
    assert one[400:] != two[400:]
    assert one[:16] != other[:16]
    assert sectum_keys.spell("tenant-ab-session probe 1", WORDS).split() == one


def sectum_run(sizes: list[float]) -> dict[str, Any]:
    by_pair = {str(number): size for number, size in enumerate(sizes)}
    return {"metrics": {"side_channel_effect_sizes": by_pair}}


@pytest.mark.parametrize(
    ("findings", "says"), [(0, Says.NOTHING_FOUND), (1, Says.FOUND), (12, Says.FOUND)]
)
def test_sectum_is_read_as_it_says(findings: int, says: Says) -> None:
    answer = sectum.read_run(
        {"confirmed_findings": findings}, sectum_run([0.1] * 11 + [0.9]), seconds=1.0
    )
    assert answer.says is says
    assert answer.num_requests == 4 + 12 * 48
    report = {"findings": ["gap"] * findings, "effect_sizes": [0.1] * 12}
    assert sectum.read_report(report, seconds=1.0).says is says


def test_sectum_that_timed_nothing_found_nothing_out() -> None:
    answer = sectum.read_run({"confirmed_findings": 0}, sectum_run([]), seconds=1.0)
    assert answer.says is Says.INCONCLUSIVE


def promptfoo_said(*, leaked: int, silent: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for number in range(10):
        lost = number >= 10 - silent
        answer = {} if lost else {"response": {"output": "acorn"}}
        rows.append({"testCase": {}, "success": True, "response": {"output": "acorn"}})
        rows.append(
            {"testCase": {"assert": [{}]}, "success": not lost and number >= leaked} | answer
        )
    return {"results": {"results": rows}}


@pytest.mark.parametrize(
    ("leaked", "silent", "says"),
    [
        (0, 0, Says.NOTHING_FOUND),
        (1, 0, Says.FOUND),
        (1, 1, Says.FOUND),
        (0, 1, Says.INCONCLUSIVE),
    ],
)
def test_promptfoo_is_read_as_it_says(leaked: int, silent: int, says: Says) -> None:
    answer = promptfoo.read_results(promptfoo_said(leaked=leaked, silent=silent), seconds=1.0)
    assert answer.says is says
    assert answer.detail.startswith(f"code in {leaked} of 10 answers")


def test_promptfoo_is_given_pairs_under_two_keys_whose_code_the_second_never_says() -> None:
    settings = promptfoo.write_settings("http://x", model="canary", keys=("a", "b"), seed=1)
    tests = settings["tests"]
    assert len(tests) == 2 * promptfoo.NUM_PAIRS
    for told, asked in zip(tests[::2], tests[1::2], strict=True):
        code = asked["metadata"]["crossSessionLeakMatch"]
        assert (told["vars"]["key"], asked["vars"]["key"]) == ("a", "b")
        assert set(told["vars"]["prompt"].split()) == {code}
        assert code not in asked["vars"]["prompt"]
        assert told["options"] == asked["options"] == {"runSerially": True}
