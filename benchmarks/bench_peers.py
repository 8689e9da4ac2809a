"""What other auditors say of six lab servers, beside kvward.

A server without a defect, one that reuses nothing, and four with a defect each, started anew for
every method so that none meets another's state. Methods that cannot be had here are named as not
run. What it installs into build/peers takes 2 GB.

    python benchmarks/bench_peers.py [--rounds N] [--method NAME]... [--add]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from figures import FOLDER as RESULTS
from kvward.cli.process import ServerProcess
from peer_methods import gu, ours, promptfoo, sectum
from peer_methods.answer import Answer, Says
from sealing_peers import FOLDER as INSTALLED

FILE = RESULTS / "peers.json"
MODEL = "canary"
KEYS = ("peers-acorn", "peers-birch")
SERVERS: Mapping[str, tuple[str, ...]] = {
    "clean": (),
    "cache off": ("--no-prefix-cache",),
    **{
        name: ("--defect", name)
        for name in ("scope-missing", "hidden-sharing", "early-publish", "cached-tokens-global")
    },
}
_SHOWN = {Says.FOUND: "FOUND", Says.INCONCLUSIVE: "inconclusive", Says.NOTHING_FOUND: "nothing"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One run of one method."""

    url: str
    folder: Path
    seed: int


Method = Callable[[Call], Answer]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--method", action="append", help="only this one; may be given again")
    parser.add_argument("--add", action="store_true", help="to what peers.json has, with new seeds")
    options = parser.parse_args()
    methods = make_methods()
    chosen = options.method or list(methods)
    rows: list[dict[str, Any]] = json.loads(FILE.read_text()) if options.add else []
    before = max((row["round"] for row in rows), default=0)
    for seed in range(before + 1, before + options.rounds + 1):
        for server, start in SERVERS.items():
            for method in chosen:
                answer = ask(methods[method], start, seed=seed)
                rows.append({"method": method, "server": server, "round": seed, **asdict(answer)})
                print(f"{seed} {server}: {method}: {answer.says}, {answer.detail}", flush=True)
                save(rows)
    print("\n" + render_table(rows))
    return 0


def make_methods() -> dict[str, Method | None]:
    """Return the methods by name, in the table's order; None for one that is not to be had here."""
    victim, attacker = KEYS
    methods: dict[str, Method | None] = {
        "kvward": lambda call: ours.run(call.url, keys=KEYS, seed=call.seed, folder=call.folder),
        "gu, two keys": lambda call: gu.run(
            call.url, model=MODEL, victim=victim, attacker=attacker, seed=call.seed
        ),
        "gu, one key": lambda call: gu.run(
            call.url, model=MODEL, victim=victim, attacker=victim, seed=call.seed
        ),
        "sectum": None,
        "sectum, our adapter": None,
        "promptfoo": None,
    }
    if (programs := sectum.install(INSTALLED)) is not None:
        methods["sectum"] = lambda call: sectum.run_as_shipped(
            programs, call.url, model=MODEL, key=victim, folder=call.folder
        )
        methods["sectum, our adapter"] = lambda call: sectum.run_with_keys(
            programs, call.url, model=MODEL
        )
    if (place := promptfoo.install(INSTALLED)) is not None:
        methods["promptfoo"] = lambda call: promptfoo.run(
            place, call.url, model=MODEL, keys=KEYS, seed=call.seed
        )
    return methods


def ask(method: Method | None, start: Sequence[str], *, seed: int) -> Answer:
    """Start a server of its own for one run of a method."""
    if method is None:
        return Answer(says=Says.NOT_RUN, detail="not to be had here", num_requests=0, seconds=0.0)
    folder = INSTALLED / "run"
    arguments = ["lab", "serve", "--scope-by-key", *start, "--defect-seed", str(seed)]
    with ServerProcess(arguments, log=folder / "lab.log") as server:
        return method(Call(url=server.url, folder=folder, seed=seed))


def save(rows: Sequence[Mapping[str, Any]]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(rows, indent=1) + "\n")


def render_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table: a row for a method, a column for a server."""
    lines = [
        "| method | " + " | ".join(SERVERS) + " | requests | seconds |",
        "|---" * (len(SERVERS) + 3) + "|",
    ]
    for method in dict.fromkeys(str(row["method"]) for row in rows):
        own = [row for row in rows if row["method"] == method]
        cells = [_cell([row for row in own if row["server"] == server]) for server in SERVERS]
        spent = [_range([row[name] for row in own]) for name in ("num_requests", "seconds")]
        lines.append(f"| {method} | " + " | ".join([*cells, *spent]) + " |")
    return "\n".join(lines)


def _cell(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what was said, with how often where rounds differ."""
    said = [_SHOWN.get(Says(row["says"]), "not run") for row in rows]
    if len(set(said)) == 1:
        return said[0]
    return ", ".join(f"{one} {said.count(one)}/{len(said)}" for one in dict.fromkeys(said))


def _range(values: Sequence[float]) -> str:
    numbers = sorted(round(value) for value in values)
    low, high = numbers[0], numbers[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


if __name__ == "__main__":
    sys.exit(main())
