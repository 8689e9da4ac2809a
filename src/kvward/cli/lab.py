"""`kvward lab`: serve the laboratory engine, list its defects, fetch a model."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import click

from kvward.audit.canary.checkpoint import write_canary_model
from kvward.blocks.equivalence import Equivalences
from kvward.blocks.layout import BlockLayout
from kvward.cli.listen import listen
from kvward.cli.press import command as press_command
from kvward.errors import ConfigError
from kvward.events import EventCounter
from kvward.gateway import read_policy
from kvward.lab.defects import DEFECTS, Defect, plant_defects
from kvward.lab.engine import LabEngine
from kvward.lab.fetch import cache_folder, fetch_smollm2, find_model
from kvward.lab.interface import Engine, EngineOptions
from kvward.lab.loading import LoadedModel, load_model
from kvward.lab.router import PrefixRouter
from kvward.lab.sealed_tier import SealedTier, block_layout
from kvward.lab.server import ServerOptions, create_app
from kvward.lab.ward import EngineWard
from kvward.scope import TokenKey
from kvward.scope.keys import KEY_BYTES

CANARY = "canary"
_SWITCH_INTERVAL_S = 0.0005
_STDIN = 0
_END_WITHIN_S = 8.0

Callback = TypeVar("Callback", bound=Callable[..., None])


@click.group("lab")
def command() -> None:
    """The laboratory engine. Real, small, and not meant to serve anybody."""


command.add_command(press_command)


def engine_options(function: Callback) -> Callback:
    """Add the options that every command with an embedded engine has."""
    for option in [
        click.option("--model", default=CANARY, show_default=True, metavar="NAME|DIR",
                     help="canary, smollm2, a model folder, or a .gguf file."),
        click.option("--defect", "defects", multiple=True, metavar="NAME[:RATE]",
                     help="Plant a defect; may be given again. See `kvward lab defects`."),
        click.option("--defect-seed", type=int, default=0, show_default=True,
                     help="Decides which opportunities a defect with a rate takes."),
        click.option("--blocks", type=click.IntRange(min=2), default=256, show_default=True,
                     help="Blocks of 16 tokens in the engine's memory."),
        click.option("--host-blocks", type=click.IntRange(min=0), default=0, show_default=True,
                     help="Blocks kept in the offload tier."),
        click.option("--host-steps", type=click.IntRange(min=0), default=0, show_default=True,
                     help="Steps until a block from the offload tier has come."),
        click.option("--host-fault-rate", type=click.FloatRange(0, 1), default=0.0,
                     show_default=True, help="How often the offload tier fails."),
        click.option("--no-prefix-cache", is_flag=True, help="Reuse nothing."),
    ]:  # fmt: skip
        function = option(function)
    return function


@command.command("serve")
@engine_options
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=8101, show_default=True)
@click.option("--uds", type=click.Path(path_type=Path), help="Listen on a Unix socket instead.")
@click.option(
    "--api-key-env", metavar="NAME", help="Ask for one of the keys in this variable, by spaces."
)
@click.option("--scope-by-key", is_flag=True, help="Every API key is a scope of its own.")
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME=SEED",
    callback=lambda _context, _parameter, values: [_parse_adapter(value) for value in values],
    help="Serve an adapter with made-up weights; may be given again.",
)
@click.option(
    "--allow-updates", is_flag=True, help="Let callers load adapters and weights, as operators do."
)
@click.option(
    "--answers",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Whole answers kept for the same request again.",
)
@click.option(
    "--scope-quota", type=click.IntRange(min=1), help="Blocks that are kept for one salt, at most."
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Engines behind a router that sends a prompt where its prefix is.",
)
@click.option(
    "--slots",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Numbered places that keep the state of their last request.",
)
@click.option(
    "--draft-tokens",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="Tokens guessed ahead for a request and verified in one step.",
)
@click.option("--ward-key-stdin", is_flag=True, hidden=True)
@click.option("--ward-config", type=click.Path(path_type=Path), hidden=True)
def serve(
    *,
    model: str,
    defects: tuple[str, ...],
    defect_seed: int,
    blocks: int,
    host_blocks: int,
    host_steps: int,
    host_fault_rate: float,
    no_prefix_cache: bool,
    scope_by_key: bool,
    adapters: list[tuple[str, int]],
    allow_updates: bool,
    answers: int,
    scope_quota: int | None,
    replicas: int,
    slots: int,
    draft_tokens: int,
    host: str,
    port: int,
    uds: Path | None,
    api_key_env: str | None,
    ward_key_stdin: bool,
    ward_config: Path | None,
) -> None:
    """Serve the bare engine: no gateway, everybody is let in, callers choose their salt.

    To see what isolation adds, use `kvward serve` instead.
    """
    if replicas > 1 and ward_key_stdin:
        raise ConfigError("A ward stands inside one engine; leave out --replicas.")
    token_key = _token_key_from_stdin() if ward_key_stdin else None
    api_keys = None
    if api_key_env is not None:
        key = os.environ.get(api_key_env)
        if not key:
            raise ConfigError(f"The environment variable {api_key_env} is not set.")
        api_keys = frozenset(key.split())
    # One for every thread: the server's, then each engine's.
    behaviour, *inside = (
        plant_defects(defects, DEFECTS, seed=defect_seed + number) for number in range(-1, replicas)
    )
    loaded = load_named_model(model)
    options = EngineOptions(
        num_blocks=blocks,
        host_blocks=host_blocks,
        host_steps=host_steps,
        host_fault_rate=host_fault_rate,
        scope_quota_blocks=scope_quota,
        num_slots=slots,
        draft_tokens=draft_tokens,
        prefix_cache=not no_prefix_cache,
    )
    layout = block_layout(loaded.config, block_tokens=options.block_tokens)
    digest = loaded.manifest(block_tokens=options.block_tokens).digest()
    with _open_ward(token_key, ward_config, layout) as (ward, equal):
        engines = [
            LabEngine(
                loaded.weights,
                loaded.config,
                options,
                behaviour=of_engine,
                ward=ward,
                manifest_digest=equal.resolve(digest),
            )
            for of_engine in inside
        ]
        engine: Engine = engines[0]
        if replicas > 1:
            engine = PrefixRouter(engines, block_tokens=options.block_tokens, behaviour=behaviour)
        app = create_app(
            engine=engine,
            model=loaded,
            api_keys=api_keys,
            options=ServerOptions(
                behaviour=behaviour,
                scope_by_key=scope_by_key,
                num_answers=answers,
                allow_updates=allow_updates,
            ),
        )
        # The engine's thread and the server's loop share one interpreter lock. Handing it over
        # after half a millisecond, not after five, keeps first tokens from waiting for a step.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        engine.start()
        for name, seed in adapters:
            engine.load_adapter(name, seed=seed)
        try:
            listen(app, host=host, port=port, uds=uds)
        finally:
            engine.stop()
            for slip in behaviour.planted:
                opportunities = sum(b.opportunities[slip] for b in (behaviour, *inside))
                strikes = sum(b.strikes[slip] for b in (behaviour, *inside))
                click.echo(f"{slip}: {strikes:,} of {opportunities:,} opportunities.", err=True)


@command.command("defects")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def list_defects(*, as_json: bool) -> None:
    """List the defects that can be planted."""
    if as_json:
        click.echo(json.dumps([_describe(defect) for defect in DEFECTS.values()], indent=2))
        return
    for defect in DEFECTS.values():
        rate = ":RATE" if defect.takes_rate else ""
        click.echo(f"{defect.name + rate:32} {defect.failure_class:11} {defect.summary}")
        channels = ", ".join(sorted(defect.channels))
        start = f" Start with {shlex.join(defect.start)}." if defect.start else ""
        click.echo(f"{'':32} {'':11} Shows in {channels}.{start} {defect.shows}")


def _describe(defect: Defect) -> dict[str, object]:
    return {
        "name": defect.name,
        "class": defect.failure_class,
        "channels": sorted(defect.channels),
        "summary": defect.summary,
        "takes_rate": defect.takes_rate,
        "rate_of": defect.opportunity,
        "start": list(defect.start),
        "arguments": list(defect.arguments),
        "shows": defect.shows,
        "seen_in": defect.seen_in,
    }


@command.command("manifest")
@click.option("--model", default=CANARY, show_default=True, metavar="NAME|DIR")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def show_manifest(*, model: str, as_json: bool) -> None:
    """Print the digest that names a model, in this engine, to stored state."""
    manifest = load_named_model(model).manifest(block_tokens=EngineOptions().block_tokens)
    value = {
        "digest": manifest.digest().hex(),
        "engine": manifest.engine,
        "engine_version": manifest.engine_version,
        "dtype": manifest.dtype,
        "kv_dtype": manifest.kv_dtype,
        "block_tokens": manifest.block_tokens,
    }
    click.echo(json.dumps(value, indent=2) if as_json else value["digest"])


@command.command("fetch")
@click.argument("name", type=click.Choice(["smollm2"]))
def fetch(name: str) -> None:  # noqa: ARG001 - one name so far
    """Fetch a small real model once (SmolLM2-135M-Instruct, 98 MB); offline from then on."""
    click.echo("Fetching SmolLM2 …", err=True)
    click.echo(str(fetch_smollm2(cache_folder())))


def load_named_model(name: str) -> LoadedModel:
    """Load a model by name or path; the canary is written to the cache folder if need be."""
    if name != CANARY:
        return load_model(find_model(name), name=None if Path(name).exists() else name)
    folder = cache_folder() / "canary-v1"
    write_canary_model(folder)
    return load_model(folder, name=CANARY)


def _parse_adapter(text: str) -> tuple[str, int]:
    name, equals, seed = text.partition("=")
    if not name or not equals or not (seed.isascii() and seed.isdigit()):
        raise click.BadParameter(f"{text!r} is not of the form NAME=SEED.")
    return name, int(seed)


@contextlib.contextmanager
def _open_ward(
    token_key: TokenKey | None, config: Path | None, layout: BlockLayout
) -> Iterator[tuple[EngineWard | None, Equivalences]]:
    """Make the ward inside the engine, over the store that a policy names, if there is one."""
    events = EventCounter()
    nothing_equal = Equivalences(read_as={})
    if token_key is None:
        yield None, nothing_equal
    elif config is None:
        yield EngineWard(token_key, events=events), nothing_equal
    else:
        kept = read_policy(config)
        with kept.keyring() as keyring:
            store = kept.sealed_store(keyring, layout, events=events)
            equal = kept.equivalences(keyring)
            tier = SealedTier(store, layout, events=events)
            try:
                yield EngineWard(token_key, events=events, tier=tier), equal
            finally:
                tier.close()


def _token_key_from_stdin() -> TokenKey:
    """Read the token key that the parent writes, and leave when the parent has gone."""
    key = b""
    while len(key) < KEY_BYTES and (part := os.read(_STDIN, KEY_BYTES - len(key))):
        key += part
    if len(key) != KEY_BYTES:
        raise ConfigError("The ward's key did not come on standard input.")

    def leave_with_parent() -> None:
        # Not through sys.stdin: its lock, held by a waiting thread, would spoil a normal end.
        os.read(_STDIN, 1)
        os.kill(os.getpid(), signal.SIGTERM)  # an orderly end: blocks on their way are kept
        time.sleep(_END_WITHIN_S)
        os._exit(0)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    return TokenKey(key)
