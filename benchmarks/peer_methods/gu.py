"""A re-implementation of the test of Gu et al., "Auditing Prompt Caching in Language Model APIs".

Their script (ICML 2025, chenchenygu/auditing-prompt-caching) is in no package index, so this
follows what the paper and the repository describe; no line is theirs. A miss is a fresh random
prompt of the attacker; a hit is one whose first 95 % the victim has sent just before. 250 of each
come in random order, and the times to a whole answer of one token are compared by a one-sided
two-sample Kolmogorov-Smirnov test. Sharing is detected below a p of 1e-8.

What differs: words of the canary model in place of random letters, of which it knows none and would
read all as one; 512 tokens in place of 5,000, because 4,096 fit; no pause between requests.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from scipy import stats

from kvward.audit.canary.words import WORDS

from .answer import Answer, Says

SIGNIFICANCE = 1e-8
NUM_SAMPLES = 250
PROMPT_WORDS = 512
PREFIX_RATIO = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Times of both arms, in seconds, in the order in which they were taken."""

    hit: list[float] = field(default_factory=list)
    miss: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The test's result. `p_value` is that of equal or slower hits."""

    p_value: float
    hit_median_s: float
    miss_median_s: float

    @property
    def is_detected(self) -> bool:
        return self.p_value < SIGNIFICANCE


def decide_sharing(samples: Samples) -> Sharing:
    """Say whether hits are faster: the distribution of their times lies above that of misses."""
    test = stats.ks_2samp(samples.hit, samples.miss, alternative="greater")
    return Sharing(
        p_value=float(test.pvalue),
        hit_median_s=_median(samples.hit),
        miss_median_s=_median(samples.miss),
    )


def take_samples(
    time_request: Callable[[str, str], float],
    *,
    victim: str,
    attacker: str,
    seed: int,
    num_samples: int = NUM_SAMPLES,
) -> Samples:
    """Time both arms.

    Args:
        time_request: Sends a prompt under a key and returns the seconds that it took.
        victim: Key of who fills the cache.
        attacker: Key of who is timed; the victim's own for their per-user level.
    """
    chance = random.Random(seed)
    arms = ["hit", "miss"] * num_samples
    chance.shuffle(arms)
    samples = Samples()
    for arm in arms:
        prompt = _write_prompt(chance, PROMPT_WORDS)
        if arm == "hit":
            time_request(victim, prompt)
            samples.hit.append(time_request(attacker, follow_prompt(chance, prompt)))
        else:
            samples.miss.append(time_request(attacker, prompt))
    return samples


def follow_prompt(chance: random.Random, prompt: str) -> str:
    """Return a prompt with the same beginning and another end."""
    words = prompt.split()
    kept = int(PREFIX_RATIO * len(words))
    return " ".join([*words[:kept], _write_prompt(chance, len(words) - kept)])


def run(url: str, *, model: str, victim: str, attacker: str, seed: int) -> Answer:
    """Put the test to a server."""
    num_requests = 0
    # One connection for all, as their clients keep one.
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60.0)

    def time_request(key: str, prompt: str) -> float:
        nonlocal num_requests
        num_requests += 1
        body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 1.0}
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        answer = response.read()
        elapsed_s = time.perf_counter() - began
        if response.status != http.client.OK:
            raise RuntimeError(f"The server said {response.status}: {answer[:200]!r}")
        return elapsed_s

    started = time.monotonic()
    samples = take_samples(time_request, victim=victim, attacker=attacker, seed=seed)
    sharing = decide_sharing(samples)
    connection.close()
    return Answer(
        says=Says.FOUND if sharing.is_detected else Says.NOTHING_FOUND,
        detail=f"p {sharing.p_value:.1e}, medians {1e3 * sharing.hit_median_s:.1f} ms against "
        f"{1e3 * sharing.miss_median_s:.1f} ms",
        num_requests=num_requests,
        seconds=time.monotonic() - started,
    )


def _write_prompt(chance: random.Random, num_words: int) -> str:
    return " ".join(chance.choices(WORDS, k=num_words))


def _median(times: Sequence[float]) -> float:
    ordered = sorted(times)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
