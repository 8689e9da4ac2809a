"""Resident memory of the engine over time, and whether it is flat."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import NamedTuple

import psutil

WARM_UP_RATIO = 0.2
_INTERVAL_S = 1.0
_FEWEST_SAMPLES = 5
_MIB = 2**20


class Sample(NamedTuple):
    """Resident bytes of a process and its children, at a time since the start of the load."""

    at_s: float
    rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """What memory did after the warm-up.

    Attributes:
        start_mib: Median of the first fifth of the samples after the warm-up.
        end_mib: Median of the last fifth.
        slope_mib_per_min: By least squares.
    """

    samples: int
    warm_up_s: float
    start_mib: float
    end_mib: float
    peak_mib: float
    slope_mib_per_min: float

    @property
    def growth_mib(self) -> float:
        """Return end minus start."""
        return self.end_mib - self.start_mib

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        values = asdict(self) | {"growth_mib": self.growth_mib}
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}


def find_trend(samples: Sequence[Sample]) -> Trend | None:
    """Return the trend after the first 20 % of the time; None with too few samples to say."""
    if not samples:
        return None
    warm_up_s = samples[0].at_s + WARM_UP_RATIO * (samples[-1].at_s - samples[0].at_s)
    warm = [sample for sample in samples if sample.at_s >= warm_up_s]
    if len(warm) < _FEWEST_SAMPLES:
        return None
    mib = [sample.rss_bytes / _MIB for sample in warm]
    fifth = max(1, len(warm) // 5)
    line = statistics.linear_regression([sample.at_s / 60 for sample in warm], mib)
    return Trend(
        samples=len(warm),
        warm_up_s=warm_up_s,
        start_mib=statistics.median(mib[:fifth]),
        end_mib=statistics.median(mib[-fifth:]),
        peak_mib=max(mib),
        slope_mib_per_min=line.slope,
    )


class MemoryWatch:
    """Samples a process and its children once a second."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)  # remembers when it began: a reused id is not it
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    @property
    def is_alive(self) -> bool:
        """Tell whether the process still runs."""
        status = None
        with suppress(psutil.Error):
            status = self._process.status() if self._process.is_running() else None
        return status not in (None, psutil.STATUS_ZOMBIE)

    async def run(self) -> None:
        """Sample until cancelled, or until the process is gone."""
        while self.is_alive:
            with suppress(psutil.Error):
                self.samples.append(Sample(time.monotonic() - self._began, self._rss_bytes()))
            await asyncio.sleep(_INTERVAL_S)

    def _rss_bytes(self) -> int:
        total = int(self._process.memory_info().rss)
        for child in self._process.children(recursive=True):
            with suppress(psutil.Error):
                total += int(child.memory_info().rss)
        return total
