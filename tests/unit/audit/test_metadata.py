"""Cached-token counts: read as they stand, and never read into what is absent."""

from kvward.audit.detectors.metadata import CountedProbe, read_counts


def probe(
    trial: int, cached: int | None, *, primed: bool = True, prompt: int | None = 512
) -> CountedProbe:
    return CountedProbe(trial=trial, primed=primed, cached_tokens=cached, prompt_tokens=prompt)


def test_nothing_gives_nothing() -> None:
    reading = read_counts([])
    assert (reading.num_read, reading.num_absent, reading.num_primed) == (0, 0, 0)
    assert reading.hit_trials == reading.phantom_hits == reading.impossible == ()


def test_reuse_of_primed_and_of_unprimed_prompts_is_told_apart() -> None:
    reading = read_counts(
        [
            probe(1, 496),
            probe(2, 0),
            probe(3, 16, primed=False),
            probe(4, 0, primed=False),
        ]
    )
    assert reading.hit_trials == (1,)
    assert reading.primed_hits == 1
    assert reading.phantom_hits == (3,)
    assert (reading.num_read, reading.num_primed) == (4, 2)
    assert reading.impossible == ()


def test_field_that_is_absent_is_neither_a_miss_nor_read() -> None:
    reading = read_counts([probe(1, None), probe(2, None, primed=False), probe(3, 0)])
    assert reading.num_absent == 2
    assert (reading.num_read, reading.num_primed) == (1, 1)
    assert reading.primed_hits == 0


def test_more_cached_than_sent_is_impossible() -> None:
    reading = read_counts([probe(1, 513), probe(2, 512), probe(3, 600, prompt=None)])
    assert reading.impossible == (1,)
    assert reading.hit_trials == (1, 2, 3)


def test_one_token_counts_as_reuse_and_a_negative_count_does_not() -> None:
    reading = read_counts([probe(1, 1), probe(2, -16)])
    assert reading.hit_trials == (1,)
    assert reading.num_read == 2
