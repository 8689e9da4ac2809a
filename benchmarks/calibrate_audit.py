"""What the auditor's statistics are worth: on recorded times, under drift, and on a rare leak.

Usage: python benchmarks/calibrate_audit.py [recorded|drift|leak ...]

`recorded`  the timing detector on all 62 published cases of Gu et al. (2025), pairs drawn without
            replacement from the recorded arms, beside the Kolmogorov-Smirnov test of that paper.
`drift`     2,000 audits of 400 pairs without any effect, under a load that drifts.
`leak`      the content detector on 100 seeds of 10,000 answers each, 3 of 10,000 of which hold one
            block of another session. Only these are worked out, from the canary model's closed
            form, and read: the auditor's sensitivity is measured, not its false alarms. Beside the
            theory: 1 - (1 - p s)^n.

Writes benchmarks/results/calibration-NAME.json. Minutes for each, on two cores.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import binom, ks_2samp

from kvward.audit.canary.codebook import Codebook, Session
from kvward.audit.canary.reference import CanaryReference
from kvward.audit.detectors.content import attribute, read_foreign_words
from kvward.audit.detectors.differential import measure
from kvward.audit.plan import BLOCK_TOKENS, TURN_NAMES
from kvward.audit.prompts import write_canary_prompt, write_voice_prompt
from kvward.audit.stats.betting import TimedPair, bet_on_faster, bet_on_slower
from kvward.audit.stats.bounds import lower_rate, upper_rate

RESULTS = Path(__file__).parent / "results"
RECORDED = Path(__file__).parent / "data" / "gu2025_prompt_cache_times.json"
EVIDENCE = 1_000.0
LEAK_RATE = 3e-4
NUM_SEEDS, NUM_OUTPUTS = 100, 10_000


def pairs_of(hits: Any, misses: Any, random: np.random.Generator) -> list[TimedPair]:
    """Return coin-flipped pairs of hits and misses, each used once."""
    coins = random.integers(1, 3, len(hits))
    return [
        TimedPair(
            first_ns=int(1e9 * (hit if coin == 1 else miss)),
            second_ns=int(1e9 * (miss if coin == 1 else hit)),
            coin=int(coin),
        )
        for hit, miss, coin in zip(
            random.permutation(hits), random.permutation(misses), coins, strict=True
        )
    ]


def recorded() -> dict[str, Any]:
    """Decide every recorded case."""
    rows = []
    for number, case in enumerate(json.loads(RECORDED.read_text(encoding="utf-8"))):
        hits, misses = case["cache_hit_client_time_s"], case["cache_miss_client_time_s"]
        num = min(len(hits), len(misses))
        needed: list[float] = []
        slower = 0
        for repeat in range(20):
            random = np.random.default_rng((number, repeat))
            pairs = pairs_of(
                random.choice(hits, num, replace=False),
                random.choice(misses, num, replace=False),
                random,
            )
            reached = np.flatnonzero(bet_on_faster(pairs) >= math.log(EVIDENCE))
            needed.append(float(reached[0] + 1) if len(reached) else math.inf)
            slower += bool(bet_on_slower(pairs).max() >= math.log(EVIDENCE))
        found = sum(math.isfinite(value) for value in needed)
        rows.append(
            {
                "provider": case["provider"],
                "model": case["model"],
                "sharing": case["sharing_level"],
                "prefix": case["prefix_fraction"],
                "victim_requests": case["n_victim_requests"],
                "median_hit_ms": round(1e3 * float(np.median(hits)), 1),
                "median_miss_ms": round(1e3 * float(np.median(misses)), 1),
                "ks_p": float(ks_2samp(hits, misses, alternative="greater", method="exact").pvalue),
                "detected_of_20": found,
                "pairs_needed": median(needed) if found > 10 else None,
                "slower_of_20": slower,
            }
        )
    return {"evidence": EVIDENCE, "cases": rows}


def drift() -> dict[str, Any]:
    """Count audits without an effect in which the evidence ever reaches a level."""
    cases = json.loads(RECORDED.read_text(encoding="utf-8"))
    num_runs, num_pairs = 2_000, 400
    highest = []
    for run in range(num_runs):
        random = np.random.default_rng((1, run))
        misses = np.array(cases[run % len(cases)]["cache_miss_client_time_s"])
        load = np.zeros(num_pairs)
        for i, shock in enumerate(random.normal(0, 0.25 * math.sqrt(1 - 0.97**2), num_pairs)):
            load[i] = (0.97 * load[i - 1] if i else 0.0) + shock
        trend = np.linspace(0, random.normal(0, 0.5), num_pairs)
        times = random.choice(misses, (num_pairs, 2)) * np.exp(load + trend)[:, None]
        times[:, 1] *= 1.1  # the second probe of a pair pays for the first
        pairs = [
            TimedPair(first_ns=int(1e9 * a), second_ns=int(1e9 * b), coin=int(c))
            for (a, b), c in zip(times, random.integers(1, 3, num_pairs), strict=True)
        ]
        highest.append(float(bet_on_faster(pairs).max()))
    levels = []
    for alpha in (0.05, 0.01, 0.001):
        crossed = sum(value >= math.log(1 / alpha) for value in highest)
        levels.append(
            {
                "alpha": alpha,
                "crossed": crossed,
                "share": crossed / num_runs,
                "upper_95": upper_rate(crossed, num_runs, confidence=0.95),
            }
        )
    return {"runs": num_runs, "pairs": num_pairs, "levels": levels}


def leak() -> dict[str, Any]:
    """Count seeds in which a leak of 3 in 10,000 outputs is named, and when."""
    reference = CanaryReference()
    first: list[int | None] = []
    planted = seen_content = seen_differential = false_alarms = 0
    began = time.perf_counter()
    for seed in range(NUM_SEEDS):
        book = Codebook(seed=seed)
        sessions = [
            book.session(tenant=tenant, conversation=name)
            for tenant in ("a", "b")
            for name in TURN_NAMES
        ]
        random = np.random.default_rng((2, seed))
        found: int | None = None
        # Only answers that leak are worked out and read; what the others show is not this study's.
        for number in np.flatnonzero(random.random(NUM_OUTPUTS) < LEAK_RATE):
            planted += 1
            reader, writer = (sessions[int(i)] for i in random.permutation(len(sessions))[:2])
            answer, own, expected = _leaky(seed, reader, writer, int(number), random, reference)
            reading = read_foreign_words([answer], "", own_words=own)
            named = attribute(
                reading.foreign, sessions, num_comparisons=NUM_OUTPUTS * len(sessions)
            )
            seen_content += bool(named) and named[0].session is writer
            false_alarms += bool(named) and named[0].session is not writer
            seen_differential += measure(dict(answer), expected) > 0.05
            if named and found is None:
                found = int(number) + 1
        first.append(found)
    sensitivity = seen_content / planted
    theory = 1 - (1 - LEAK_RATE * sensitivity) ** NUM_OUTPUTS
    detected = sum(value is not None for value in first)
    low, high = binom.interval(0.99, NUM_SEEDS, theory)
    return {
        "rate": LEAK_RATE,
        "outputs": NUM_OUTPUTS,
        "seeds": NUM_SEEDS,
        "planted": planted,
        "named": seen_content,
        "named_wrongly": false_alarms,
        "deviating": seen_differential,
        "sensitivity": sensitivity,
        "sensitivity_lower_95": lower_rate(seen_content, planted, confidence=0.95),
        "seeds_detected": detected,
        "seeds_by_theory": theory * NUM_SEEDS,
        "interval_99": [int(low), int(high)],
        "inside": bool(low <= detected <= high),
        "median_outputs_to_first": median(value for value in first if value is not None),
        "median_by_theory": math.log(2) / (LEAK_RATE * sensitivity),
        "seconds": round(time.perf_counter() - began, 1),
    }


def _leaky(
    seed: int,
    reader: Session,
    writer: Session,
    number: int,
    random: np.random.Generator,
    reference: CanaryReference,
) -> tuple[list[tuple[str, float]], frozenset[str], dict[str, float]]:
    """Return an answer in which one block of the prompt is another session's, and what it hides."""
    length = BLOCK_TOKENS * int(random.integers(3, 25))
    own = write_voice_prompt(seed, reader, prefix_words=0, num_words=length, nonce=number)
    theirs = write_canary_prompt(seed, writer, num_words=length, nonce=number)
    start = BLOCK_TOKENS * int(random.integers(length // BLOCK_TOKENS))
    mixed = (
        *own.words[:start],
        *theirs.words[start : start + BLOCK_TOKENS],
        *own.words[start + BLOCK_TOKENS :],
    )
    answer = sorted(reference.logprobs(mixed).items(), key=lambda item: -item[1])[:20]
    return answer, own.own_words, reference.logprobs(own.words)


STUDIES: dict[str, Callable[[], dict[str, Any]]] = {
    "recorded": recorded,
    "drift": drift,
    "leak": leak,
}


def main() -> int:
    names = sys.argv[1:] or list(STUDIES)
    if wrong := [name for name in names if name not in STUDIES]:
        print(f"There is no study {wrong[0]!r}; there are {', '.join(STUDIES)}.", file=sys.stderr)
        return 3
    RESULTS.mkdir(exist_ok=True)
    for name in names:
        value = STUDIES[name]()
        path = RESULTS / f"calibration-{name}.json"
        path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(value if name != "recorded" else _brief(value), indent=1))
    return 0


def _brief(value: dict[str, Any]) -> dict[str, Any]:
    """Count what was decided, by what the recorded medians say."""
    cases = value["cases"]
    slow = [case for case in cases if case["median_hit_ms"] >= case["median_miss_ms"]]
    sure = [case for case in cases if case["ks_p"] < 1e-8]
    return {
        "cases": len(cases),
        "detected in most of 20 draws": sum(case["detected_of_20"] > 10 for case in cases),
        "with KS p < 1e-8": len(sure),
        "of these detected": sum(case["detected_of_20"] > 10 for case in sure),
        "hits not faster in the median": len(slow),
        "of these ever detected": sum(case["detected_of_20"] > 0 for case in slow),
    }


if __name__ == "__main__":
    sys.exit(main())
