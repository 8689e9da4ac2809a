"""`kvward selftest`: meet every defect of the lab and say which ones the auditor found."""

from __future__ import annotations

import contextlib
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from kvward.cli.selftest.matrix import Matrix, Row
from kvward.cli.selftest.meeting import Effort, meet
from kvward.cli.selftest.page import render_page
from kvward.cli.selftest.text import render_matrix
from kvward.errors import ConfigError
from kvward.lab.defects import DEFECTS, Defect
from kvward.terms import ExitCode

_RESULT = "selftest.json"
_PAGE = "selftest.html"


@click.command("selftest")
@click.option(
    "--defect",
    "names",
    multiple=True,
    metavar="NAME[:RATE]",
    help="Only this one, at a rate of its own if given; may be given again. All by default. "
    "See `kvward lab defects`.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of its opportunities that a defect takes, where it takes a rate.",
)
@click.option(
    "--outputs",
    type=click.IntRange(100, 1_000_000),
    default=2_000,
    show_default=True,
    help="Outputs read under load, for each engine.",
)
@click.option(
    "--pairs",
    type=click.IntRange(20, 10_000),
    default=40,
    show_default=True,
    help="Coin-flipped pairs for each probe scope, for each engine.",
)
@click.option(
    "--clean/--no-clean",
    default=True,
    show_default=True,
    help="Audit the engine without a defect too, once for every way it is started.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Random by default.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep histories, logs, the result and its page in this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def command(
    *,
    names: tuple[str, ...],
    rate: float,
    outputs: int,
    pairs: int,
    clean: bool,
    seed: int | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Audit the lab with each of its planted defects, and without any.

    Ends with 0 when every defect was found and nothing fired without cause, with 1 when a channel
    fired that the defect does not touch, with 2 when a defect was missed or an engine without one
    could not be read.
    """
    chosen, rates = _choose(names)
    effort = Effort(
        outputs=outputs,
        pairs=pairs,
        rate=rate,
        seed=secrets.randbits(31) if seed is None else seed,
    )
    matrix = _run(chosen, effort, rates=rates, clean=clean, out=out, started=int(time.time()))
    click.echo(matrix.to_json().decode() if as_json else render_matrix(matrix))
    if matrix.strays:
        return ExitCode.VIOLATED
    return ExitCode.INCONCLUSIVE if matrix.missed or matrix.unclear else ExitCode.NOT_OBSERVED


def _choose(given: tuple[str, ...]) -> tuple[list[Defect], dict[str, float]]:
    """Return the defects to meet, and the rates of those that were given one."""
    names, rates = set[str](), dict[str, float]()
    for value in given:
        name, colon, rate = value.partition(":")
        if name not in DEFECTS:
            raise ConfigError(
                f"There is no defect {name}.", hint="`kvward lab defects` lists them."
            )
        names.add(name)
        if colon:
            rates[name] = _rate(DEFECTS[name], rate)
    return [defect for name, defect in DEFECTS.items() if not names or name in names], rates


def _rate(defect: Defect, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 1:
        raise ConfigError(
            f"The rate of {defect.name} is above 0 and at most 1.", hint=f"Not {text!r}."
        )
    if not defect.takes_rate:
        raise ConfigError(
            f"{defect.name} takes no rate.", hint="It is always there; leave the rate out."
        )
    return rate


def _run(
    chosen: list[Defect],
    effort: Effort,
    *,
    rates: dict[str, float],
    clean: bool,
    out: Path | None,
    started: int,
) -> Matrix:
    engines: list[tuple[Defect | None, tuple[str, ...]]] = []
    if clean:
        starts = dict.fromkeys(defect.start for defect in chosen)
        engines += [(None, start) for start in starts]
    engines += [(defect, defect.start) for defect in chosen]
    rows: list[Row] = []
    matrix = Matrix(
        rows=(),
        seed=effort.seed,
        outputs=effort.outputs,
        pairs=effort.pairs,
        started_unix_s=started,
    )
    with (
        _folder(out) as folder,
        click.progressbar(length=len(engines), file=sys.stderr, width=30) as bar,
    ):
        for number, (defect, start) in enumerate(engines):
            name = "clean" if defect is None else defect.name

            def on_audit(what: str, name: str = name) -> None:
                bar.label = f"{name}, {what}"
                bar.render_progress()

            part = folder / f"{number:02}-{name}"
            own = replace(effort, rate=rates.get(name, effort.rate))
            rows.append(meet(defect, start=start, effort=own, folder=part, on_audit=on_audit))
            bar.update(1)
            matrix = replace(matrix, rows=tuple(rows))
            if out is not None:
                _write(matrix, out)
    return matrix


def _write(matrix: Matrix, out: Path) -> None:
    """Write what is known so far, so that an interrupted run leaves what it has."""
    (out / _RESULT).write_bytes(matrix.to_json())
    (out / _PAGE).write_text(render_page(matrix), encoding="utf-8")


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="kvward-selftest-") as folder:
        yield Path(folder)
