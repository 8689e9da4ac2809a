"""Who was shown whose, as squares with counts in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from kvward.audit.plan import TURN_NAMES
from kvward.audit.report.drawing import WIDTH_INCHES, Plot, make_plot, shown_name, styled
from kvward.audit.report.model import AuditReport
from kvward.terms import Channel

_Counts = npt.NDArray[np.int_]


def plot_content(report: AuditReport) -> Plot | None:
    """Return how often each session was shown each other session's words."""
    if not report.plan.has_content:
        return None
    names = [f"{tenant}/{turn}" for tenant in report.plan.tenants for turn in TURN_NAMES]
    counts = _count(report, Channel.CONTENT, names, by_tenant=False)
    return _matrix(
        names,
        counts,
        caption="Whose words were shown in whose answer, by session",
        columns="whose words",
        rows="in whose answer",
    )


def plot_reuse(report: AuditReport) -> Plot | None:
    """Return how often each tenant was told of reuse of each tenant's state that is not its own."""
    if all(cell.channel is not Channel.METADATA for cell in report.plan.cells):
        return None
    names = list(report.plan.tenants)
    counts = _count(report, Channel.METADATA, names, by_tenant=True)
    return _matrix(
        names,
        counts,
        caption="Reuse of a foreign conversation's state, by tenant",
        columns="whose state",
        rows="who was told",
    )


def _count(
    report: AuditReport, channel: Channel, names: Sequence[str], *, by_tenant: bool
) -> _Counts:
    """Return findings with a known source: rows are readers, columns are sources."""
    index = {name: number for number, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)), int)
    for verdict in report.verdicts:
        if verdict.channel is not channel:
            continue
        for finding in verdict.findings:
            reader, source = finding.reader, finding.source or ""
            if by_tenant:
                # A conversation's name has no slash; a tenant's may.
                reader, source = reader.rpartition("/")[0], source.rpartition("/")[0]
            if reader in index and source in index:
                counts[index[reader], index[source]] += 1
    return counts


def _matrix(
    names: Sequence[str], counts: _Counts, *, caption: str, columns: str, rows: str
) -> Plot:
    shown = [shown_name(name) for name in names]
    with styled():
        side = max(2.2, 0.42 * len(names) + 1.0)
        figure = Figure(figsize=(WIDTH_INCHES, side))
        axis = figure.subplots()
        edges = np.arange(len(names) + 1) - 0.5
        axis.pcolormesh(
            edges,
            edges,
            counts,
            cmap="Reds",
            vmin=0,
            vmax=max(1, counts.max()),
            edgecolors="#9ca3af",
            linewidth=1,
        )
        axis.invert_yaxis()
        axis.set_aspect("equal")
        for (row, column), count in np.ndenumerate(counts):
            dark = count > 0.45 * max(1, counts.max())
            axis.text(
                column,
                row,
                str(count) if count else "·",
                ha="center",
                va="center",
                fontsize=9,
                color="white" if dark else "#111827",
            )
        axis.set_xticks(range(len(shown)), shown, rotation=60, ha="right", fontsize=9)
        axis.set_yticks(range(len(shown)), shown, fontsize=9)
        axis.set_xlabel(columns)
        axis.set_ylabel(rows)
        for spine in axis.spines.values():
            spine.set_visible(False)
        return make_plot(figure, caption=caption, told=_told(shown, counts))


def _told(shown: Sequence[str], counts: _Counts) -> str:
    pairs = [
        f"{shown[column]} in {shown[row]}: {count}"
        for (row, column), count in np.ndenumerate(counts)
        if count
    ]
    return f"{'; '.join(pairs)}." if pairs else f"Every pair of {len(shown)} by {len(shown)}: 0."
