"""The trend of memory."""

import os

import pytest
from attacks.churn.memory import MemoryWatch, Sample, find_trend

MIB = 2**20


def samples(*mib: float) -> list[Sample]:
    return [Sample(float(second), int(value * MIB)) for second, value in enumerate(mib)]


def test_growth_during_the_warm_up_is_not_growth() -> None:
    trend = find_trend(samples(*range(0, 200, 10), *[200.0] * 80))
    assert trend is not None
    assert trend.growth_mib == 0
    assert trend.slope_mib_per_min == pytest.approx(0, abs=1e-6)
    assert trend.start_mib == trend.end_mib == trend.peak_mib == 200


def test_a_steady_leak_shows_as_slope_and_growth() -> None:
    trend = find_trend(samples(*(100 + second / 2 for second in range(121))))
    assert trend is not None
    assert trend.slope_mib_per_min == pytest.approx(30, rel=1e-3)
    assert 30 < trend.growth_mib < 48
    assert trend.to_json()["growth_mib"] == trend.growth_mib


def test_one_peak_is_not_growth() -> None:
    trend = find_trend(samples(*[100.0] * 99, 400.0))
    assert trend is not None
    assert trend.growth_mib == 0
    assert trend.peak_mib == 400


def test_too_few_samples_say_nothing() -> None:
    assert find_trend([]) is None
    assert find_trend(samples(1, 2, 3)) is None


async def test_a_process_is_watched() -> None:
    import asyncio

    watch = MemoryWatch(os.getpid())
    assert watch.is_alive
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert watch.samples[0].rss_bytes > MIB
