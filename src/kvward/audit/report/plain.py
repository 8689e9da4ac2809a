"""Text that somebody else chose, made fit to be shown: one line, nothing that acts."""

from __future__ import annotations

_MAX_CHARACTERS = 2000
_SHOWN_INSTEAD = "\N{REPLACEMENT CHARACTER}"


def plain(text: str, *, max_characters: int = _MAX_CHARACTERS) -> str:
    """Return a text on one line without anything that a terminal, XML or a reader would obey.

    Control characters, line ends, marks that turn the direction of writing, and lone surrogates
    become a replacement character. What a format has signs for is that format's to escape.

    Args:
        text: [untrusted]
        max_characters: What is longer is cut, and ends in three dots.
    """
    shown = "".join(c if c.isprintable() else _SHOWN_INSTEAD for c in text[: max_characters + 1])
    return shown if len(shown) <= max_characters else shown[: max_characters - 1] + "…"
