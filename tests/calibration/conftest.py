"""Real response times, shared by the calibrations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_REAL = json.loads(
    (Path(__file__).parents[1] / "data" / "prompt_cache_times.json").read_text(encoding="utf-8")
)


@pytest.fixture(params=_REAL["cases"], ids=lambda case: case["name"].split()[0])
def real_times(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return one provider's times of hits and misses, `hit_s` and `miss_s`, in seconds."""
    case: dict[str, Any] = request.param
    return case
