"""What all plots share: size, style, and SVG text that a page can hold and a reader can hear."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kvward.audit.report.plain import plain

WIDTH_INCHES = 4.6
_MAX_NAME = 28
_LARGEST = 1.5  # pixels for a point
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kvward",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # names of tenants are names, whatever stands between dollar signs
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot of a page.

    Attributes:
        caption: What it shows, in a few words.
        told: The same in numbers, for who cannot see it, and for who prints it.
        svg: Markup, safe to be put into a page.
    """

    caption: str
    told: str
    svg: str


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Draw in the house's style."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # The reader's browser has the letters that this machine's font lacks.
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font", category=UserWarning
        )
        yield


def make_plot(figure: Figure, *, caption: str, told: str) -> Plot:
    """Turn a figure into a plot, inside `styled`."""
    buffer = io.StringIO()
    figure.savefig(
        buffer,
        format="svg",
        bbox_inches="tight",
        metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
    )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # The page decides the size, up to what leaves letters as large as those of the page.
    size = re.search(r'viewBox="0 0 ([\d.]+) ', text)
    widest = round(_LARGEST * float(size[1])) if size else 0
    text = re.sub(
        r'(<svg[^>]*?) width="[^"]*" height="[^"]*"',
        rf'\1 style="max-width: {widest}px"',
        text,
        count=1,
    )
    label = escape(plain(f"{caption}. {told}"), quote=True)
    return Plot(caption=caption, told=told, svg=f'<svg role="img" aria-label="{label}"{text[4:]}')


def shown_name(text: str) -> str:
    """Return a name as a plot shows it: on one line, not too long. [untrusted]"""
    return plain(text, max_characters=_MAX_NAME)


def plain_ticks(axis: Axes) -> None:
    """Write the numbers of a logarithmic axis as people do."""
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
