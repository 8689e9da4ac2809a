"""Plots of times, evidence and bounds, drawn small so that they can be read on a telephone.

Lines differ by stroke and mark as well as by colour.
"""

from __future__ import annotations

from math import log, log10
from statistics import median

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from kvward.audit.report.drawing import WIDTH_INCHES, Plot, make_plot, plain_ticks, styled
from kvward.audit.report.model import AuditReport
from kvward.audit.stats.bounds import bound_with_sensitivity, upper_rate
from kvward.audit.verdict import Verdict
from kvward.terms import Channel, ProbeScope

_PRIMED, _UNPRIMED = "#0b6e99", "#b45309"
_INK = "#111827"
_SCOPES = {
    ProbeScope.S0: ("#6b7280", "--", ""),
    ProbeScope.S2: ("#7c3aed", "-.", "s"),
    ProbeScope.S3: ("#b91c1c", "-", "o"),
    ProbeScope.S5: ("#0b6e99", ":", "^"),
}
_STROKES = ("-", "--", "-.", ":")
_MARKS = ("o", "s", "^", "D", "v", "P")
_EVENT_MARKS = ("x", "+", "1", "2", "3", "4")
_COLORS = ("#0b6e99", "#b45309", "#7c3aed", "#b91c1c", "#166534", "#111827")


def plot_times(report: AuditReport) -> Plot | None:
    """Return, for each probe scope, how times of primed and unprimed probes are distributed."""
    scopes = [s for s in report.plan.pair_scopes if report.judgement.pairs.get(s)]
    if not scopes:
        return None
    told = []
    with styled():
        figure = Figure(figsize=(WIDTH_INCHES, 1.3 * len(scopes) + 0.8))
        axes = figure.subplots(len(scopes), 1, sharex=True, squeeze=False)[:, 0]
        for axis, scope in zip(axes, scopes, strict=True):
            pairs = report.judgement.pairs[scope]
            middles = []
            for times, color, stroke, label in [
                ([pair.primed_ns for pair in pairs], _PRIMED, "-", "primed by the writer"),
                ([pair.unprimed_ns for pair in pairs], _UNPRIMED, "--", "not primed"),
            ]:
                share = np.arange(1, len(times) + 1) / len(times)
                axis.step(
                    np.sort(times) / 1e6,
                    share,
                    where="post",
                    color=color,
                    linestyle=stroke,
                    label=label,
                )
                middles.append(f"{median(times) / 1e6:.3g} ms {label}")
            told.append(f"{scope}: median {', '.join(middles)}")
            axis.set_ylabel(scope.value, rotation=0, labelpad=14)
            axis.set_yticks([0, 0.5, 1])
            axis.grid(axis="x", alpha=0.25)
        axes[0].legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        axes[-1].set_xlabel("time to first token, ms (share of probes up to there)")
        axes[-1].set_xscale("log")
        plain_ticks(axes[-1])
        return make_plot(
            figure, caption="Times of both arms, by probe scope", told=f"{'; '.join(told)}."
        )


def plot_evidence(report: AuditReport) -> Plot | None:
    """Return how the evidence for "primed is faster" grew with the pairs."""
    timing = report.judgement.timing
    scopes = [s for s in report.plan.pair_scopes if s in timing and timing[s].log_e_path]
    if not scopes:
        return None
    line = log10(report.plan.evidence_threshold)
    told = [f"Violated from {line:.3g}"]
    with styled():
        figure = Figure(figsize=(WIDTH_INCHES, 3.2))
        axis = figure.subplots()
        for number, scope in enumerate(scopes):
            path = np.array(timing[scope].log_e_path) / np.log(10)
            color, stroke, mark = _SCOPES.get(scope, (_INK, "-", "x"))
            name = f"{scope.value} (control)" if scope is ProbeScope.S0 else scope.value
            axis.plot(
                np.arange(1, len(path) + 1),
                path,
                color=color,
                linestyle=stroke,
                marker=mark,
                markersize=4,
                markevery=(number, max(1, len(path) // 8)),  # lines may lie on each other
                label=name,
            )
            told.append(f"{name} ended at {path[-1]:.3g}")
        axis.axhline(line, color=_INK, linewidth=1)
        axis.annotate(
            "violated from here",
            (0.01, line),
            xycoords=("axes fraction", "data"),
            ha="left",
            va="bottom",
            fontsize=9,
        )
        axis.set_xlabel("pairs")
        axis.set_ylabel("evidence, log10 of E")
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
        return make_plot(figure, caption="Evidence over pairs", told=f"{'; '.join(told)}.")


def plot_bounds(report: AuditReport) -> Plot | None:
    """Return what the run bounds, and what fewer or more requests without an event would.

    Cells in which nothing was seen lie on a curve of their own sensitivity; a cell with events is
    a cross of some kind, at its upper limit.
    """
    groups = _bounded(report)
    if not groups:
        return None
    told = []
    with styled():
        figure = Figure(figsize=(WIDTH_INCHES, 3.2))
        axis = figure.subplots()
        for number, ((requests, bound, events), verdicts) in enumerate(groups.items()):
            color = _COLORS[number % len(_COLORS)]
            marks = _EVENT_MARKS if events else _MARKS
            mark = marks[number % len(marks)]
            name = _names(verdicts)
            sensitivity = verdicts[0].sensitivity
            if not events and sensitivity is not None:
                counts = np.geomspace(max(2, requests / 10), requests * 10, 60)
                curve = [_bound_at(n, verdicts[0].confidence, sensitivity) for n in counts]
                stroke = _STROKES[number % len(_STROKES)]
                axis.plot(counts, curve, color=color, linestyle=stroke, linewidth=1)
            axis.plot([requests], [bound], color=color, marker=mark, linestyle="", label=name)
            seen = f", {events} seen" if events else ""
            told.append(f"{name}: ≤ {bound:.2g} from {requests} counted{seen}")
        axis.set_xscale("log")
        axis.set_yscale("log")
        plain_ticks(axis)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_xlabel("requests that count for the cell")
        axis.set_ylabel("upper bound")
        axis.grid(alpha=0.25)
        axis.legend(
            frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9
        )
        return make_plot(figure, caption="Bound against requests", told=f"{'; '.join(told)}.")


_Point = tuple[int, float, int]
"""Requests that count, bound, events."""


def _bounded(report: AuditReport) -> dict[_Point, list[Verdict]]:
    """Return cells with a bound, those of one point together."""
    groups: dict[_Point, list[Verdict]] = {}
    for verdict in report.verdicts:
        if verdict.bound is not None and 0 < verdict.bound < 1:
            point = (_num_counted(verdict), verdict.bound, verdict.events)
            groups.setdefault(point, []).append(verdict)
    return groups


def _num_counted(verdict: Verdict) -> int:
    """Return how many requests a bound rests on; for a rate without events, from the bound."""
    if verdict.channel is Channel.TIMING:
        return max(1, verdict.run // 3)  # pairs: one priming and two probes each
    if verdict.events or verdict.sensitivity is None or verdict.bound is None:
        return max(1, verdict.run)
    visible = min(1 - 1e-12, verdict.bound * verdict.sensitivity)
    return max(1, round(log(1 - verdict.confidence) / log(1 - visible)))


def _bound_at(num_requests: float, confidence: float, sensitivity: float) -> float:
    visible = upper_rate(0, round(num_requests), confidence=confidence)
    return bound_with_sensitivity(visible, sensitivity)


def _names(verdicts: list[Verdict]) -> str:
    channels: dict[str, list[str]] = {}
    for verdict in verdicts:
        channels.setdefault(verdict.channel.value, []).append(verdict.scope.value)
    return ", ".join(f"{channel} {' '.join(scopes)}" for channel, scopes in channels.items())
