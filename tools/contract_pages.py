"""Write the pages about controls and providers from the package's data, or check that they agree.

Usage: python tools/contract_pages.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from kvward.contract.controls import Control, Controls, load_controls
from kvward.contract.providers import (
    CLAUSES,
    NOTICE,
    Provider,
    Source,
    Statement,
    load_providers,
    open_questions,
)

ROOT = Path(__file__).parent.parent
CONTROLS_HEADER = """\
# Controls

Written by `tools/contract_pages.py` from `src/kvward/contract/controls.toml`; change it there.

Which controls of published standards the clauses of a contract help to meet, and which command
shows it. The controls are our paraphrase; the standard's own text is what counts, and whether one
is met is for an assessor to say.

*direct*: the control is about reuse of cached state between tenants. *part*: it asks for more than
the clauses, or for it in other words. *neighbour*: it is about something else that the same
evidence helps with.
"""
PROVIDERS_HEADER = f"""\
# What providers state about their caches

Written by `tools/contract_pages.py` from `src/kvward/contract/providers/`; change it there.

{NOTICE} Nothing found means that nothing was found in the texts named here, not that the provider
has nothing to say.

*stated*: in the provider's text. *implied*: our conclusion from it. *second-hand*: reported by
others, who are named; we did not read the text itself. *open*: questions without a public answer;
`kvward contract ask NAME` writes the letter that asks them, `kvward contract compare NAME NAME`
puts two providers side by side.
"""


def main() -> int:
    """Write or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    pages: dict[Path, Callable[[], str]] = {
        ROOT / "docs" / "controls.md": lambda: render_controls(load_controls()),
        ROOT / "docs" / "providers.md": lambda: render_providers(load_providers()),
    }
    code = 0
    for page, render in pages.items():
        text = render()
        if not check:
            page.write_text(text, encoding="utf-8")
        elif not page.exists() or page.read_text(encoding="utf-8") != text:
            print(f"{page.name} is not what the data say; run python tools/contract_pages.py")
            code = 1
    return code


def render_controls(table: Controls) -> str:
    """Write the page of controls: the clauses, then one section for each standard."""
    lines = [CONTROLS_HEADER, "| clause | controls |", "|---|---|"]
    for clause in CLAUSES:
        numbers = ", ".join(f"{row.number} ({row.fit})" for row in table.of_clause(clause))
        lines.append(f"| `{clause}` | {numbers} |")
    for key, standard in table.standards.items():
        name = f"{standard.title}, {standard.version}"
        lines += [
            f"\n## {f'[{name}]({standard.url})' if standard.url else name}\n",
            f"Read: {standard.read}. Sureness: {standard.sureness}. {standard.note}\n",
            "| control | asks | fit | clauses | shown by |",
            "|---|---|---|---|---|",
        ]
        lines += [_control(control) for control in table.controls if control.standard == key]
    return "\n".join(lines) + "\n"


def _control(control: Control) -> str:
    level = "" if control.level is None else f" (level {control.level})"
    asks = control.asks if control.note is None else f"{control.asks} *{control.note}*"
    cells = [
        f"{control.number}{level}",
        asks,
        control.fit,
        ", ".join(f"`{clause}`" for clause in control.clauses),
        "<br>".join(f"`{shown.command}`: {shown.shows}" for shown in control.evidence),
    ]
    return _row(cells)


def render_providers(providers: tuple[Provider, ...]) -> str:
    """Write the page of providers: a table of all, then a section for each."""
    lines = [
        PROVIDERS_HEADER,
        "| provider | scope set by | separated by | kept for | unanswered | open | read |",
        "|---|---|---|---|---|---|---|",
    ]
    for provider in providers:
        facts = provider.facts
        cells = [
            f"[{provider.title}](#{provider.name})",
            facts.set_by,
            ", ".join(facts.dimensions) or "not stated",
            facts.lifetime or "not stated",
            f"{len(provider.unanswered)} of {len(CLAUSES)}",
            str(len(open_questions(provider))),
            provider.read_label,
        ]
        lines.append(_row(cells))
    for provider in providers:
        lines += _provider(provider)
    return "\n".join(lines) + "\n"


def _provider(provider: Provider) -> list[str]:
    facts = provider.facts
    return [
        f'\n<a id="{provider.name}"></a>\n\n## {provider.title}\n',
        f"`{provider.name}`, about {provider.covers}.\n",
        f"* Kept in: {', '.join(facts.tiers) or 'not stated'}",
        f"* Controls: {'; '.join(facts.controls) or 'not stated'}",
        f"* Removed by: {(facts.erasure or 'not stated').rstrip('.')}\n",
        "| clause | what is stated | confidence | source |",
        "|---|---|---|---|",
        *(_statement(provider, said) for said in provider.statements.values()),
        *([""] if provider.sources else []),
        *(f"{number}. {_source(source)}" for number, source in enumerate(provider.sources, 1)),
    ]


def _statement(provider: Provider, said: Statement) -> str:
    if said.says is None:
        return _row([f"`{said.clause}`", "nothing found", "unanswered", ""])
    numbers = (provider.sources.index(source) + 1 for source in said.sources)
    return _row([f"`{said.clause}`", said.says, str(said.confidence), ", ".join(map(str, numbers))])


def _source(source: Source) -> str:
    title = source.title if source.url is None else f"[{source.title}]({source.url})"
    when = f"reported by {source.via}" if source.read is None else f"read {source.read}"
    return f"{title}, {source.publisher}: {source.page} ({source.form}; {when})."


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
