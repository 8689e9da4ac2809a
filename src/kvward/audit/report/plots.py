"""Plots as SVG text, drawn small so that they can be read on a telephone."""

from __future__ import annotations

import io
import re
from math import log10
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from kvward.audit.plan import TURN_NAMES
from kvward.audit.report.model import AuditReport
from kvward.terms import Channel, ProbeScope

_PRIMED, _UNPRIMED = "#0b6e99", "#b45309"
_SCOPE_COLORS = {
    ProbeScope.S0: "#6b7280",
    ProbeScope.S2: "#7c3aed",
    ProbeScope.S3: "#b91c1c",
    ProbeScope.S5: "#0b6e99",
}
_WIDTH_INCHES = 4.6
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kvward",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def plot_times(report: AuditReport) -> str | None:
    """Return, for each probe scope, how times of primed and unprimed probes are distributed."""
    scopes = [s for s in report.plan.pair_scopes if report.judgement.pairs[s]]
    if not scopes:
        return None
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, 1.3 * len(scopes) + 0.8))
        axes = figure.subplots(len(scopes), 1, sharex=True, squeeze=False)[:, 0]
        for axis, scope in zip(axes, scopes, strict=True):
            pairs = report.judgement.pairs[scope]
            for times, color, label in [
                ([pair.primed_ns for pair in pairs], _PRIMED, "primed by the writer"),
                ([pair.unprimed_ns for pair in pairs], _UNPRIMED, "not primed"),
            ]:
                share = np.arange(1, len(times) + 1) / len(times)
                axis.step(np.sort(times) / 1e6, share, where="post", color=color, label=label)
            axis.set_ylabel(scope.value, rotation=0, labelpad=14)
            axis.set_yticks([0, 0.5, 1])
            axis.grid(axis="x", alpha=0.25)
        axes[0].legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        axes[-1].set_xlabel("time to first token, ms (share of probes up to there)")
        axes[-1].set_xscale("log")
        _plain_ticks(axes[-1])
        return _svg(figure)


def plot_evidence(report: AuditReport) -> str | None:
    """Return how the evidence for "primed is faster" grew with the pairs."""
    scopes = [s for s in report.plan.pair_scopes if report.judgement.timing[s].log_e_path]
    if not scopes:
        return None
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, 3.2))
        axis = figure.subplots()
        for scope in scopes:
            path = np.array(report.judgement.timing[scope].log_e_path) / np.log(10)
            axis.plot(
                np.arange(1, len(path) + 1),
                path,
                color=_SCOPE_COLORS.get(scope, "#000000"),
                linestyle="--" if scope is ProbeScope.S0 else "-",
                label=f"{scope.value} (control)" if scope is ProbeScope.S0 else scope.value,
            )
        axis.axhline(log10(report.plan.evidence_threshold), color="#111827", linewidth=1)
        axis.annotate(
            "violated from here",
            (0.01, log10(report.plan.evidence_threshold)),
            xycoords=("axes fraction", "data"),
            ha="left",
            va="bottom",
            fontsize=9,
        )
        axis.set_xlabel("pairs")
        axis.set_ylabel("evidence, log10 of E")
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
        return _svg(figure)


def plot_content(report: AuditReport) -> str | None:
    """Return how often each session was shown each other session's words."""
    if not report.plan.has_content:
        return None
    names = [f"{tenant}/{turn}" for tenant in report.plan.tenants for turn in TURN_NAMES]
    counts = np.zeros((len(names), len(names)), int)
    for verdict in report.verdicts:
        if verdict.channel is Channel.CONTENT:
            for finding in verdict.findings:
                if finding.source in names and finding.reader in names:
                    counts[names.index(finding.reader), names.index(finding.source)] += 1
    with mpl.rc_context(_STYLE):
        side = max(3.4, 0.42 * len(names) + 1.0)
        figure = Figure(figsize=(_WIDTH_INCHES, side))
        axis = figure.subplots()
        edges = np.arange(len(names) + 1) - 0.5
        axis.pcolormesh(
            edges,
            edges,
            counts,
            cmap="Reds",
            vmin=0,
            vmax=max(1, counts.max()),
            edgecolors="white",
            linewidth=1,
        )
        axis.invert_yaxis()
        axis.set_aspect("equal")
        for (row, column), count in np.ndenumerate(counts):
            dark = count > 0.6 * counts.max()
            axis.text(
                column,
                row,
                str(count) if count else "·",
                ha="center",
                va="center",
                fontsize=9,
                color="white" if dark and count else "#374151",
            )
        axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=9)
        axis.set_yticks(range(len(names)), names, fontsize=9)
        axis.set_xlabel("whose words")
        axis.set_ylabel("in whose answer")
        for spine in axis.spines.values():
            spine.set_visible(False)
        return _svg(figure)


def _plain_ticks(axis: Axes) -> None:
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _svg(figure: Figure) -> str:
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
    # The page decides the size; the drawing keeps its proportions.
    return re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
