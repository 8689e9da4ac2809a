"""Placeholders such as `{prompt}` inside structured values: never in the text of a document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def fill(template: object, values: Mapping[str, Any]) -> Any:
    """Return a copy of a JSON value with its placeholders filled.

    A string that is one placeholder becomes the value, of whatever type; inside a longer string
    the value's text is put. Names that are not in `values` stay as they are. What is filled in is
    never searched for placeholders again.
    """
    if isinstance(template, str):
        whole = _PLACEHOLDER.fullmatch(template)
        if whole is not None and whole[1] in values:
            return values[whole[1]]
        return _PLACEHOLDER.sub(lambda m: str(values.get(m[1], m[0])), template)
    if isinstance(template, Mapping):
        return {name: fill(value, values) for name, value in template.items()}
    if isinstance(template, list | tuple):
        return [fill(value, values) for value in template]
    return template


def placeholders(template: object) -> frozenset[str]:
    """Return the names of all placeholders in a JSON value."""
    if isinstance(template, str):
        return frozenset(_PLACEHOLDER.findall(template))
    if isinstance(template, Mapping):
        return frozenset().union(*(placeholders(value) for value in template.values()))
    if isinstance(template, list | tuple):
        return frozenset().union(*(placeholders(value) for value in template))
    return frozenset()
