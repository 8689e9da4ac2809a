"""Put a server that serves the canary model under churn, as several tenants, and read its answers.

Usage: python -m attacks.churn URL --tenant a=KEY --tenant b=KEY --seconds 180 --clients 32 \\
           --block-tokens 32 --max-tokens 1500 --seed 1 --engine-pid PID --metrics-url URL/metrics

Ends with 0 when nothing was found and every control was met, 1 when something was found, 2 when a
control was not met, 3 for wrong usage, 5 when nothing answers at URL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import psutil

from attacks.churn.campaign import Campaign, Options
from attacks.churn.plan import Shape
from kvward import __version__
from kvward.audit.canary.checkpoint import MAX_CONTEXT_TOKENS
from kvward.cli.credential import is_loopback
from kvward.errors import TargetError, TargetUnreachableError
from kvward.terms import ExitCode

_MOST_SECONDS = 24 * 3600
_MOST_CLIENTS = 256
_MOST_REQUESTS = 1_000_000


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = _make_parser()
    given = parser.parse_args(arguments)
    options = _read_options(parser, given)
    campaign = Campaign(options, on_progress=_tell)
    try:
        report = asyncio.run(campaign.run())
    except TargetUnreachableError as exc:
        _tell(str(exc))
        return ExitCode.UNREACHABLE
    except TargetError as exc:
        _tell(str(exc))
        return ExitCode.USAGE
    except psutil.Error:
        _tell(f"There is no process {options.engine_pid} that can be looked at.")
        return ExitCode.USAGE
    report.options = {
        **asdict(options.shape),
        "seconds": options.seconds,
        "requests": options.requests,
        "timeout_s": options.timeout_s,
        "reads_memory": options.engine_pid is not None,
        "reads_metrics": options.metrics_url is not None,
    }
    if given.json:
        result = report.to_json(
            commit=_commit(), version=__version__, python=platform.python_version()
        )
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    sys.stdout.write(report.render())
    return report.exit_code


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m attacks.churn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="base URL of an OpenAI-compatible server")
    parser.add_argument(
        "--tenant",
        action="append",
        default=[],
        metavar="NAME=KEY",
        help="a tenant and its key, or NAME=env:VARIABLE; give two or more",
    )
    parser.add_argument("--model", help="by default the first that the server lists")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=_MOST_REQUESTS, help="the most to send")
    parser.add_argument("--block-tokens", type=int, default=16, help="the engine's block size")
    parser.add_argument("--max-tokens", type=int, default=1500, help="of the longest prompt")
    parser.add_argument("--answer-tokens", type=int, default=32, help="of the longest answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds until a hang")
    parser.add_argument("--idle-within", type=float, default=30.0, help="seconds after the load")
    parser.add_argument("--engine-pid", type=int, help="its memory and its children's is watched")
    parser.add_argument("--memory-allowance", type=float, default=64.0, help="MiB of growth")
    parser.add_argument("--metrics-url", help="Prometheus text, or counters as a JSON object")
    parser.add_argument("--stop-early", action="store_true", help="end at the first finding")
    parser.add_argument("--authorised", action="store_true", help="URL may be another machine's")
    parser.add_argument("--json", type=Path, help="file to write the result to")
    return parser


def _read_options(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Options:
    for name, value, least, most in [
        ("--seconds", given.seconds, 1, _MOST_SECONDS),
        ("--clients", given.clients, 1, _MOST_CLIENTS),
        ("--requests", given.requests, 1, _MOST_REQUESTS),
        ("--block-tokens", given.block_tokens, 1, 4096),
        ("--answer-tokens", given.answer_tokens, 1, 512),
        ("--max-tokens", given.max_tokens, 1, MAX_CONTEXT_TOKENS - given.answer_tokens),
        ("--seed", given.seed, 0, 2**63 - 1),
        ("--timeout", given.timeout, 1, 3600),
        ("--idle-within", given.idle_within, 1, 3600),
        ("--memory-allowance", given.memory_allowance, 0, 1e6),
    ]:
        if not least <= value <= most:
            parser.error(f"{name} lies between {least} and {most}")
    if given.json is not None and not given.json.resolve().parent.is_dir():
        parser.error("the folder of --json is not there")
    for name, url in [("URL", given.url), ("--metrics-url", given.metrics_url)]:
        if url is None:
            continue
        if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
            parser.error(f"{name} is written as http://HOST:PORT")
        if not (given.authorised or is_loopback(url)):
            parser.error(
                f"{name} is not this machine's; whoever may load it like this says --authorised"
            )
    keys = _read_tenants(parser, given.tenant)
    if len(keys) > given.clients:
        parser.error("every tenant needs a client")
    return Options(
        url=given.url.rstrip("/").removesuffix("/v1"),
        keys=keys,
        model=given.model,
        shape=Shape(
            seed=given.seed,
            tenants=tuple(keys),
            clients=given.clients,
            block_tokens=given.block_tokens,
            longest_tokens=given.max_tokens,
            answer_tokens=given.answer_tokens,
        ),
        seconds=given.seconds,
        requests=given.requests,
        timeout_s=given.timeout,
        idle_within_s=given.idle_within,
        engine_pid=given.engine_pid,
        metrics_url=given.metrics_url,
        allowance_mib=given.memory_allowance,
        stops_early=given.stop_early,
    )


def _read_tenants(parser: argparse.ArgumentParser, texts: Sequence[str]) -> dict[str, str]:
    keys: dict[str, str] = {}
    for text in texts:
        name, _, key = text.partition("=")
        if key.startswith("env:"):
            key = os.environ.get(key[4:], "")
        if not name or not key or name in keys:
            # The text may hold a key, so it is not repeated.
            parser.error("a --tenant is not NAME=KEY, has no key, or is given twice")
        keys[name] = key
    if len(keys) < 2 or len(set(keys.values())) < len(keys):
        parser.error("--tenant is given for two tenants or more, each with a key of its own")
    return keys


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
