"""Two requests that must not meet do with the defect, and never do without it.

Ground truth: how many tokens were reused, and the answers of a plain forward pass over the weights
and pictures that were asked for.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from kvward.errors import UsageError
from kvward.lab.defects import DEFECTS, plant_defects
from kvward.lab.interface import EngineOptions, LlamaWeights
from kvward.lab.media import Picture
from kvward.lab.scheduler import Scheduler
from kvward.lab.variants import Variants
from lab_models import random_weights, small_config
from lab_schedules import Ask, largest_error, run_schedule

CONFIG = small_config()
WEIGHTS = random_weights(CONFIG, seed=1)
OPTIONS = EngineOptions(block_tokens=4, num_blocks=200, max_batch_tokens=32)
PROMPT = tuple(range(3, 25))
GAP = 30
WRONG = 1e-4


def new_variants() -> Variants:
    variants = Variants(WEIGHTS, manifest_digest=b"test")
    variants.load_adapter("ada", seed=1)
    variants.load_adapter("bob", seed=2)
    return variants


def in_turn(*asks: Ask) -> list[Ask]:
    return [replace(ask, arrives=GAP * number) for number, ask in enumerate(asks)]


def ask(salt: str | None = "s", adapter: str | None = None, **other: object) -> Ask:
    values = {"prompt": PROMPT, "max_tokens": 3, "arrives": 0, **other}
    return Ask(salt=salt, adapter=adapter, **values)  # type: ignore[arg-type]  # as in Ask


def run(
    *names: str,
    asks: Sequence[Ask],
    options: EngineOptions = OPTIONS,
    update: Callable[[Variants], None] | None = None,
) -> tuple[list[int], list[bool]]:
    """Return for each request how much was reused, and whether its answer is wrong.

    `update` happens between the first request and the second.
    """
    variants = new_variants()
    used: list[LlamaWeights] = []
    moments: dict[int, Callable[[Scheduler], None]] = {}

    def note(number: int) -> Callable[[Scheduler], None]:
        def do(_: Scheduler) -> None:
            if number == 1 and update is not None:
                update(variants)
            used.append(variants.find(asks[number].adapter).weights)

        return do

    for number in range(len(asks)):
        moments[asks[number].arrives] = note(number)
    answers, _ = run_schedule(
        WEIGHTS,
        CONFIG,
        options,
        asks,
        behaviour=plant_defects(names, DEFECTS),
        ward=None,
        variants=variants,
        at_moment=moments,
    )
    wrong = [
        largest_error(weights, CONFIG, asked, answer) > WRONG
        for weights, asked, answer in zip(used, asks, answers, strict=True)
    ]
    return [answer.cached_tokens for answer in answers], wrong


def test_sound_engine_runs_each_adapter_on_its_own_and_reuses_its_own() -> None:
    asks = in_turn(ask(), ask(adapter="ada"), ask(adapter="bob"), ask(adapter="ada"), ask())
    cached, wrong = run(asks=asks)
    assert cached == [0, 0, 0, 20, 20]
    assert not any(wrong)


def test_adapters_in_one_batch_are_each_answered_right() -> None:
    variants = new_variants()
    asks = [ask(salt=f"s{n}", adapter=(None, "ada", "bob")[n % 3]) for n in range(12)]
    answers, _ = run_schedule(
        WEIGHTS, CONFIG, OPTIONS, asks, behaviour=plant_defects((), DEFECTS), ward=None,
        variants=variants,
    )  # fmt: skip
    for asked, answer in zip(asks, answers, strict=True):
        weights = variants.find(asked.adapter).weights
        assert largest_error(weights, CONFIG, asked, answer) < WRONG


def test_adapter_missing_reuses_state_of_the_base() -> None:
    cached, wrong = run("adapter-missing", asks=in_turn(ask(), ask(adapter="ada")))
    assert cached == [0, 20]
    assert wrong == [False, True]


def reload_ada(variants: Variants) -> None:
    variants.load_adapter("ada", seed=9)


def test_adapter_reload_stale_reuses_state_of_the_old_weights() -> None:
    asks = in_turn(ask(adapter="ada"), ask(adapter="ada"))
    assert run(asks=asks, update=reload_ada) == ([0, 0], [False, False])
    assert run("adapter-reload-stale", asks=asks, update=reload_ada) == ([0, 20], [False, True])
    # Without a reload nothing is wrong with the key.
    assert run("adapter-reload-stale", asks=asks) == ([0, 20], [False, False])
    apart = in_turn(ask(adapter="ada"), ask(adapter="bob"))
    assert run("adapter-reload-stale", asks=apart) == ([0, 0], [False, False])


def reload_base(variants: Variants) -> None:
    variants.load_base(seed=9)


@pytest.mark.parametrize("adapter", [None, "ada"])
def test_weights_reload_stale_reuses_state_of_the_old_weights(adapter: str | None) -> None:
    asks = in_turn(ask(adapter=adapter), ask(adapter=adapter))
    assert run(asks=asks, update=reload_base) == ([0, 0], [False, False])
    assert run("weights-reload-stale", asks=asks, update=reload_base) == ([0, 20], [False, True])


def test_running_request_keeps_the_weights_it_began_with() -> None:
    variants = new_variants()
    old = variants.find("ada").weights
    asks = [ask(adapter="ada", max_tokens=12)]
    answers, _ = run_schedule(
        WEIGHTS, CONFIG, OPTIONS, asks, behaviour=plant_defects((), DEFECTS), ward=None,
        variants=variants, at_moment={5: lambda _: reload_ada(variants)},
    )  # fmt: skip
    assert largest_error(old, CONFIG, asks[0], answers[0]) < WRONG


def test_salt_adapter_ambiguous_lets_a_salt_name_an_adapter() -> None:
    asks = in_turn(ask(salt=None, adapter="ada"), ask(salt="ada"))
    assert run(asks=asks) == ([0, 0], [False, False])
    assert run("salt-adapter-ambiguous", asks=asks) == ([0, 20], [False, True])
    border = in_turn(ask(salt="xa", adapter="bob"), ask(salt="xab", adapter="bob"))
    assert run("salt-adapter-ambiguous", asks=border) == ([0, 0], [False, False])


def test_model_missing_offload_restores_state_of_another_adapter() -> None:
    options = replace(OPTIONS, num_blocks=12, host_blocks=200)
    asks = in_turn(ask(), ask(salt="x", prompt=tuple(range(49, 5, -1))), ask(adapter="ada"))
    assert run(asks=asks, options=options) == ([0, 0, 0], [False] * 3)
    cached, wrong = run("model-missing-offload", asks=asks, options=options)
    assert cached == [0, 0, 20]
    assert wrong == [False, False, True]


def picture(seed: int, *, width: int = 2, height: int = 4) -> Picture:
    pixels = np.random.default_rng(seed).integers(0, 256, 2 * width * height, np.uint8)
    return Picture(pixels=pixels.tobytes(), width=width, height=height)


def ask_about(shown: Picture, *, salt: str = "s") -> Ask:
    return ask(salt=salt, prompt=(*[0] * shown.num_tokens, *PROMPT), pictures=(shown,))


def test_sound_engine_sees_each_picture_and_reuses_it() -> None:
    asks = in_turn(ask_about(picture(1)), ask_about(picture(2)), ask_about(picture(1)))
    assert run(asks=asks) == ([0, 0, 28], [False] * 3)


def test_media_missing_answers_about_another_picture() -> None:
    asks = in_turn(ask_about(picture(1)), ask_about(picture(2)))
    assert run("media-missing", asks=asks) == ([0, 28], [False, True])


def turned(shown: Picture) -> Picture:
    return replace(shown, width=shown.height, height=shown.width)


def test_media_shape_missing_takes_a_picture_for_one_of_another_shape() -> None:
    asks = in_turn(ask_about(picture(1)), ask_about(turned(picture(1))), ask_about(picture(2)))
    assert run(asks=asks) == ([0, 0, 0], [False] * 3)
    assert run("media-shape-missing", asks=asks) == ([0, 28, 0], [False, True, False])


def test_short_media_digest_meets_another_picture_by_chance() -> None:
    options = replace(OPTIONS, num_blocks=4_000, max_batch_tokens=256)
    asks = [replace(ask_about(picture(n)), max_tokens=1, arrives=n // 8) for n in range(600)]

    def reused(*names: str) -> tuple[int, int]:
        answers, _ = run_schedule(
            WEIGHTS, CONFIG, options, asks, behaviour=plant_defects(names, DEFECTS), ward=None
        )
        wrong = [largest_error(WEIGHTS, CONFIG, a, b) for a, b in zip(asks, answers, strict=True)]
        return sum(a.cached_tokens > 0 for a in answers), sum(error > WRONG for error in wrong)

    assert reused() == (0, 0)
    hits, wrong = reused("short-media-digest")
    assert 1 <= hits <= 10  # 600 digests of 16 bits: 2.7 pairs expected, fixed by the pictures
    assert wrong == hits


def test_picture_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="2 bytes"):
        Picture(pixels=b"abc", width=1, height=2)
    with pytest.raises(UsageError, match="at least one"):
        Picture(pixels=b"", width=0, height=2)


def test_pictures_that_overlap_and_unknown_adapters_are_refused() -> None:
    shown = picture(1)
    double = replace(ask_about(shown), pictures=(shown, replace(shown, first_token=3)))
    for bad, words in [(double, "places of their own"), (ask(adapter="eve"), "no adapter eve")]:
        with pytest.raises(UsageError, match=words):
            run_schedule(
                WEIGHTS, CONFIG, OPTIONS, [bad], behaviour=plant_defects((), DEFECTS), ward=None
            )
