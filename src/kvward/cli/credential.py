"""API keys and addresses on a command line."""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

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


def is_in_environment(text: str) -> bool:
    """Tell whether a key is given by the name of a variable and not written down."""
    return text.startswith(_VARIABLE)


def check_address(url: str) -> None:
    """Check a base URL before anything repeats it.

    Raises:
        ConfigError: It is no HTTP URL, or holds a name, a password, a query or a fragment, which
            would end up in plans and reports.
    """
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises where it is none
    except ValueError as exc:
        raise ConfigError("A target's address is not a URL.", hint=_WRITE) from exc
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        # What is in there may be a secret, so the address is not repeated.
        raise ConfigError(
            "A target's address holds more than scheme, host, port and path.",
            hint="Give keys with --tenant NAME=env:VARIABLE; they are sent as headers.",
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"{url} is not a URL.", hint=_WRITE)


def is_loopback(url: str) -> bool:
    """Tell whether a checked address is this machine's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_WRITE = "Write it as http://HOST:PORT"
