"""The example contract, and copies of it with something changed."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from kvward.contract import IsolationContract, parse_contract

EXAMPLE = Path(__file__).parent.parent / "examples" / "contract.toml"


def example() -> dict[str, Any]:
    return tomllib.loads(EXAMPLE.read_text())


def contract_of(value: dict[str, Any]) -> IsolationContract:
    return parse_contract(msgspec.json.encode(value), source="test", as_json=True)


def with_value(base: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return a copy with the value at a path of names and numbers set; None takes it away."""
    result = copy.deepcopy(base)
    *way, last = path.split(".")
    place: Any = result
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    key: Any = int(last) if isinstance(place, list) else last
    if value is None:
        del place[key]
    elif isinstance(place, list) and key == len(place):
        place.append(value)
    else:
        place[key] = value
    return result
