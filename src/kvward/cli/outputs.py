"""Where reports go: what is printed, what the folder holds, and files of other formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from kvward.audit.report import AuditReport, ReportFormat, check_format, render_report
from kvward.cli.auditing import PAGE_NAME, REPORT_NAME
from kvward.errors import ConfigError

_FILES = {
    ReportFormat.SARIF: "SARIF 2.1.0, one result for each cell.",
    ReportFormat.JUNIT: "JUnit XML, one test case for each cell; inconclusive is an error.",
    ReportFormat.OPENMETRICS: "OpenMetrics text.",
    ReportFormat.MARKDOWN: "a Markdown summary.",
}


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What a command was asked to write.

    Attributes:
        printed: The format for standard output.
        files: Files beside the folder, by format.
    """

    printed: ReportFormat
    files: Mapping[ReportFormat, Path]

    def check(self) -> None:
        """Check, before anything is sent, that all of it can be written.

        Raises:
            ConfigError: A package is missing, or a file's folder is, or may not be written to.
        """
        for form in {self.printed, *self.files}:
            check_format(form)
        for form, path in self.files.items():
            place = path if path.exists() else path.parent
            if not place.exists() or path.is_dir() or not os.access(place, os.W_OK):
                raise ConfigError(
                    f"The file of --{form} cannot be written: {path}.",
                    hint="Give a file in a folder that exists and that you may write to.",
                )

    def write(self, report: AuditReport, *, folder: Path, heading: str) -> None:
        """Write the folder's reports and the files, and print.

        Raises:
            ConfigError: Something cannot be written; the rest was.
        """
        unwritten = []
        files = {
            folder / REPORT_NAME: ReportFormat.JSON,
            folder / PAGE_NAME: ReportFormat.HTML,
            **{path: form for form, path in self.files.items()},
        }
        for path, form in files.items():
            try:
                path.write_bytes(render_report(report, form, heading=heading))
            except OSError as exc:
                unwritten.append(f"{path}: {exc.strerror}")
        click.echo(render_report(report, self.printed, heading=heading).decode().rstrip("\n"))
        click.echo(f"History and reports are in {folder}", err=True)
        if unwritten:
            raise ConfigError(
                f"Reports cannot be written: {'; '.join(unwritten)}.",
                hint="The report above is complete; keep it, or make room and repeat.",
            )


def report_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of reports; it gets them as `outputs`."""

    @wraps(command)
    def with_outputs(
        *,
        form: str,
        as_json: bool,
        **others: Any,  # Any: the command's own options
    ) -> int:
        given = {form: others.pop(f"{form.value}_file") for form in _FILES}
        outputs = Outputs(
            printed=ReportFormat.JSON if as_json else ReportFormat(form),
            files={form: path for form, path in given.items() if path is not None},
        )
        return command(outputs=outputs, **others)

    options = [
        click.option(
            "--format",
            "form",
            type=click.Choice([form.value for form in ReportFormat]),
            default=ReportFormat.TEXT.value,
            show_default=True,
            help="What to print; the folder holds JSON and HTML whatever it is.",
        ),
        click.option("--json", "as_json", is_flag=True, help="The same as --format json."),
        *(
            click.option(
                f"--{form.value}",
                f"{form.value}_file",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                help=f"Write {what}",
            )
            for form, what in _FILES.items()
        ),
    ]
    for option in reversed(options):
        with_outputs = option(with_outputs)
    return with_outputs
