"""Takes secrets and control characters out of a text that somebody else wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from kvward.audit.exchange import Reply

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

    def finds_in(self, text: str) -> bool:
        """Tell whether a text holds one of the secrets."""
        return any(secret in text for secret in self._secrets)

    def name(self, text: str) -> str:
        """Return a name as it is, or one for a name that holds a secret: stars and a digest.

        So two names that differ still do.
        """
        if not self.finds_in(text):
            return text
        return "***" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]

    def __call__(self, text: str) -> str:
        """Return at most 400 characters of a text, printable and without any of the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        plain = "".join(c if c.isprintable() else " " for c in text)
        return " ".join(plain.split())[:_MAX_CHARACTERS]


def scrub_reply(reply: Reply, scrub: Scrubber) -> Reply:
    """Return a reply whose names hold no secret, in case the target answered with its own key."""
    names = (*reply.response_ids, reply.model or "", reply.finish_reason or "")
    if not scrub.finds_in("\0".join(names)):
        return reply
    return replace(
        reply,
        response_ids=tuple(scrub.name(one) for one in reply.response_ids),
        model=None if reply.model is None else scrub.name(reply.model),
        finish_reason=None if reply.finish_reason is None else scrub.name(reply.finish_reason),
    )
