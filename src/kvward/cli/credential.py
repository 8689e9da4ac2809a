"""API keys on a command line."""

from __future__ import annotations

import os

from kvward.errors import ConfigError

_VARIABLE = "env:"


def parse_key(text: str) -> str:
    """Return a key that is written down, or held by the variable of `env:VARIABLE`. [secret]

    Raises:
        ConfigError: The variable is not set.
    """
    if not text.startswith(_VARIABLE):
        return text
    name = text.removeprefix(_VARIABLE)
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"The environment variable {name} is not set.")
    return value
