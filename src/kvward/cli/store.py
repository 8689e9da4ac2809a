"""`kvward store`: what lies in a store of sealed state, and what goes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, runtime_checkable

import click

from kvward.blocks.equivalence import sign_equivalences
from kvward.cli.keys import purge_pending
from kvward.errors import ConfigError, KeyUnavailableError, UsageError
from kvward.gateway import read_policy
from kvward.scope.keyring import Keyring, iter_status
from kvward.store import Bucket

_CONFIG = click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path),
    help="Policy with a [store]; see `kvward gateway init --keep`.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")


@runtime_checkable
class _Sweeping(Protocol):
    def sweep(self) -> int: ...


@click.group("store")
def command() -> None:
    """The store of sealed state: statistics, purge, sweep."""


@command.command("stats")
@_CONFIG
@_JSON
def stats(*, config: Path, as_json: bool) -> None:
    """Show entries and bytes of every tenant bucket, by pseudonym.

    Whoever owns the store sees the same: how entries are grouped, how many, how large, when. Not
    whose they are, nor of what.
    """
    kept = read_policy(config)
    backend = kept.backend()
    rows = {bucket.hex(): asdict(usage) for bucket, usage in backend.stats().items()}
    value = {"capabilities": asdict(backend.capabilities), "buckets": rows}
    if as_json:
        click.echo(json.dumps(value, indent=2))
        return
    for name, able in asdict(backend.capabilities).items():
        click.echo(f"{name.replace('_', ' '):26} {'yes' if able else 'no'}")
    for bucket, usage in rows.items():
        click.echo(
            f"{bucket} {usage['num_entries']} entries, {usage['num_bytes']} bytes, "
            f"{usage['evicted_entries']} evicted"
        )
    if not rows:
        click.echo("The store is empty.")


@command.command("purge")
@_CONFIG
@click.option("--tenant", metavar="NAME", help="Forget all entries of a tenant; keys remain.")
@click.option("--pending", is_flag=True, help="Forget what was erased and is still pending.")
@_JSON
def purge(*, config: Path, tenant: str | None, pending: bool, as_json: bool) -> None:
    """Forget stored state. It is computed anew; to end it for good, use `kvward keys erase`."""
    if pending == (tenant is not None):
        raise UsageError("Say either --tenant NAME or --pending.")
    kept = read_policy(config)
    backend = kept.backend()
    with kept.keyring() as keyring:
        if tenant is None:
            purged = purge_pending(keyring, backend)
        else:
            bucket = Bucket(tenant=_bucket_of(keyring, tenant), scope=None)
            purged = backend.purge(bucket)
    click.echo(json.dumps({"purged": purged}) if as_json else f"Purged {purged} entries.")


@command.command("sweep")
@_CONFIG
@_JSON
def sweep(*, config: Path, as_json: bool) -> None:
    """Forget entries past their time, where the backend does not do it by itself."""
    backend = read_policy(config).backend()
    swept = 0
    if isinstance(backend, _Sweeping):
        while count := backend.sweep():
            swept += count
    click.echo(json.dumps({"swept": swept}) if as_json else f"Swept {swept} entries.")


@command.command("equate")
@_CONFIG
@click.option("--model", "model", required=True, metavar="DIGEST", help="Which model reads.")
@click.option(
    "--reads-as", required=True, metavar="DIGEST", help="The model whose stored state it reads."
)
def equate(*, config: Path, model: str, reads_as: str) -> None:
    """Sign that one model's stored state may be read as another's.

    An upgrade of an engine changes the digest of its model (`kvward lab manifest`), and with it
    everything stored is out of reach. Where you have checked that the new version makes the same
    state, say so here, and name the file in the policy: `equivalences` under [store].
    """
    kept = read_policy(config)
    name = kept.store_policy.equivalences
    if name is None:
        raise ConfigError(
            "The policy names no list of equal models.",
            hint='Add to [store]: equivalences = "equal.json"',
        )
    path = kept.folder / name
    with kept.keyring() as keyring:
        known = dict(kept.equivalences(keyring).read_as) if path.exists() else {}
        known[_digest(model)] = _digest(reads_as)
        path.write_text(sign_equivalences(known, keyring.receipt_seed) + "\n", encoding="utf-8")
    click.echo(f"Wrote {path}. Engines read it when they start.")


def _digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError(
            "A digest of a model is written in hexadecimal.", hint="See `kvward lab manifest`."
        ) from None


def _bucket_of(keyring: Keyring, tenant: str) -> bytes:
    tenant_id = keyring.tenant_id(tenant)
    if all(row.tenant_id != tenant_id for row in iter_status(keyring)):
        raise KeyUnavailableError(
            f"The tenant {tenant!r} has no key in this keyring.",
            hint="It never asked for anything, or is spelled another way.",
        )
    return keyring.tenant_bucket(tenant_id)
