"""The matrix as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

from datetime import UTC, datetime

from kvward import __version__
from kvward.audit.report.html import make_environment
from kvward.cli.selftest.matrix import Matrix
from kvward.cli.selftest.text import find_seen, mark, name_of
from kvward.terms import Channel

_ENVIRONMENT = make_environment("kvward.cli.selftest")
_ENVIRONMENT.globals |= {"find_seen": find_seen, "mark": mark, "name_of": name_of}


def render_page(matrix: Matrix) -> str:
    """Return the page: every mark is a word, colour only repeats it."""
    started = datetime.fromtimestamp(matrix.started_unix_s, UTC)
    return _ENVIRONMENT.get_template("matrix.html.j2").render(
        matrix=matrix,
        channels=list(Channel),
        started=started.strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
    )
