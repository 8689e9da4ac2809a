"""Arguments that several commands of `kvward contract` take."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import click

CONTRACT_FILE = click.Path(path_type=Path, dir_okay=False)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")


def _day(_ctx: click.Context, _parameter: click.Parameter, value: datetime | None) -> date:
    return (value or datetime.now(UTC)).date()


TODAY = click.option(
    "--today",
    type=click.DateTime(["%Y-%m-%d"]),
    callback=_day,
    help="Judge as of this day (UTC); of the clock, if not given.",
)
