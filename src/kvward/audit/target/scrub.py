"""Takes secrets and control characters out of a text that somebody else wrote."""

from __future__ import annotations

from collections.abc import Iterable

_SHORTEST = 4
_MAX_CHARACTERS = 400


class Scrubber:
    """Replaces every known secret in a text by three stars.

    Args:
        secrets: Keys and the like; shorter than four characters they are no secrets but words.
            [secret]
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted({s for s in secrets if len(s) >= _SHORTEST}, key=len, reverse=True)

    def __repr__(self) -> str:
        """Leave out the secrets."""
        return "<Scrubber>"

    def __call__(self, text: str) -> str:
        """Return at most 400 characters of a text, printable and without any of the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        plain = "".join(c if c.isprintable() else " " for c in text)
        return " ".join(plain.split())[:_MAX_CHARACTERS]
