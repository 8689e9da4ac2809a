"""`kvward keys`: look at a keyring, rotate, erase, collect, change the root."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import click

from kvward.errors import ConfigError, UsageError
from kvward.gateway import read_policy
from kvward.scope import load_root_key
from kvward.scope.derive import SCOPE_ID_BYTES
from kvward.scope.keyring import (
    Keyring,
    LocalRoot,
    collect,
    derive_receipt_key,
    erase_scope,
    erase_tenant,
    finish_purge,
    iter_status,
    pending_purges,
    reroot,
    rotate,
    sign_receipt,
    verify_receipt,
)
from kvward.scope.token import decode_base64url
from kvward.store import Backend, Bucket

_CONFIG = click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path),
    help="Policy with a [keyring]; see `kvward gateway init --keep`.",
)
_TENANT = click.option("--tenant", required=True, metavar="NAME", help="As the policy names it.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")


@click.group("keys")
def command() -> None:
    """The durable keyring: rotation, erasure with receipt, collection."""


@command.command("status")
@_CONFIG
@_JSON
def status(*, config: Path, as_json: bool) -> None:
    """Show every tenant's epochs and how far a rotation has drained."""
    kept = read_policy(config)
    with kept.keyring() as keyring:
        names = {keyring.tenant_id(tenant.name): tenant.name for tenant in kept.settings.tenants}
        rows = [
            asdict(row) | {"tenant_id": row.tenant_id.hex(), "tenant": names.get(row.tenant_id)}
            for row in iter_status(keyring)
        ]
        value = {
            "deployment": keyring.deployment,
            "root_id": keyring.root.root_id.hex(),
            "receipt_key": derive_receipt_key(keyring.receipt_seed),
            "erasure_bound_s": keyring.lifetimes.erasure_bound_s,
            "pending_purges": len(pending_purges(keyring)),
            "tenants": rows,
        }
    if as_json:
        click.echo(json.dumps(value, indent=2))
        return
    for name in ("deployment", "root_id", "receipt_key", "erasure_bound_s", "pending_purges"):
        click.echo(f"{name.replace('_', ' '):16} {value[name]}")
    for row in rows:
        state = "erased" if row["erased"] else f"epoch {row['epoch']}"
        click.echo(
            f"{row['tenant'] or row['tenant_id'][:16]:16} {state}, "
            f"{row['num_keys']} keys, {row['num_draining']} of them draining"
        )


@command.command("rotate")
@_CONFIG
@_TENANT
@click.option(
    "--retire-old",
    is_flag=True,
    help="Stop reading what was stored before, at once; for keys that became known.",
)
@_JSON
def rotate_keys(*, config: Path, tenant: str, retire_old: bool, as_json: bool) -> None:
    """Begin a new epoch of a tenant: write new, read old until it has drained."""
    with read_policy(config).keyring() as keyring:
        epoch = rotate(keyring, tenant, retire_old=retire_old)
        bound = keyring.lifetimes.cache_s
    if as_json:
        click.echo(json.dumps({"tenant": tenant, "epoch": epoch, "in_use_within_s": bound}))
    else:
        click.echo(f"New state of {tenant} is written under epoch {epoch} within {bound} s.")


@command.command("erase")
@_CONFIG
@_TENANT
@click.option(
    "--conversation",
    metavar="PSEUDONYM",
    help="One conversation or user, by the x-kvward-conversation-id of its answers. "
    "Two conversations that open alike share it.",
)
@click.option("--all", "whole", is_flag=True, help="Everything of the tenant.")
@click.option("--receipt", type=click.Path(path_type=Path), help="Write the receipt here.")
@click.option("--wait", is_flag=True, help="Return only when the erasure holds everywhere.")
def erase(
    *,
    config: Path,
    tenant: str,
    conversation: str | None,
    whole: bool,
    receipt: Path | None,
    wait: bool,
) -> None:
    """Destroy the keys of a conversation or of a tenant, and print the signed receipt."""
    if whole == (conversation is not None):
        raise UsageError("Say either --conversation PSEUDONYM or --all.")
    kept = read_policy(config)
    with kept.keyring() as keyring:
        if conversation is None:
            done = erase_tenant(keyring, tenant)
        else:
            done = erase_scope(keyring, tenant, _scope_id(conversation))
        text = sign_receipt(done, keyring.receipt_seed)
        if receipt is not None:
            receipt.write_text(text + "\n", encoding="utf-8")
        click.echo(text)
        if done.keys_destroyed == 0:
            click.echo(
                f"No stored key was found under {tenant} for this. What engines hold of it ends "
                "all the same; but if it was stored under another tenant, it is still there.\n"
                "Next: compare --tenant and the name with the answer that you mean.",
                err=True,
            )
        if kept.settings.store is not None:
            purged = purge_pending(keyring, kept.backend())
            click.echo(f"Purged {purged} stored entries.", err=True)
        rest = done.effective_unix_s - time.time()
        if wait and rest > 0:
            click.echo(f"Waiting {rest:.0f} s until every replica has forgotten …", err=True)
            time.sleep(rest)
            if kept.settings.store is not None:
                purge_pending(keyring, kept.backend())
        elif not wait:
            click.echo(
                f"It holds everywhere in {max(0, rest):.0f} s. Then sweep once more: "
                "kvward keys collect",
                err=True,
            )


@command.command("collect")
@_CONFIG
@_JSON
def collect_keys(*, config: Path, as_json: bool) -> None:
    """Destroy keys that nothing needs any more, and finish pending purges. Run it daily."""
    kept = read_policy(config)
    with kept.keyring() as keyring:
        destroyed = collect(keyring)
        purged = 0
        if kept.settings.store is not None:
            purged = purge_pending(keyring, kept.backend())
        pending = len(pending_purges(keyring))
    if as_json:
        click.echo(json.dumps({"destroyed": destroyed, "purged": purged, "pending": pending}))
    else:
        click.echo(
            f"Destroyed {destroyed} keys, purged {purged} entries; {pending} purges pending."
        )


@command.command("reroot")
@_CONFIG
@click.option(
    "--new-root-key-file",
    required=True,
    type=click.Path(path_type=Path),
    help="A root key file, made with `kvward keys new-root`.",
)
def reroot_keys(*, config: Path, new_root_key_file: Path) -> None:
    """Wrap everything under another root key; then name it in the policy and restart."""
    with read_policy(config).keyring() as keyring:
        count = reroot(keyring, LocalRoot(load_root_key(new_root_key_file)))
    click.echo(
        f"Wrapped {count} keys anew. Name {new_root_key_file} in the policy, restart gateways "
        "and engines, then destroy the old root key: backups made before open until then."
    )


@command.command("new-root")
@click.argument("path", type=click.Path(path_type=Path))
def new_root(path: Path) -> None:
    """Write a fresh root key file."""
    from kvward.scope import create_root_key

    create_root_key(path)
    click.echo(f"Wrote {path}.")


@command.command("verify-receipt")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--receipt-key", required=True, metavar="BASE64", help="From `kvward keys status`, once."
)
def verify(*, path: Path, receipt_key: str) -> None:
    """Check a receipt without a keyring, and say in plain words what it says."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"The receipt {path} cannot be read.") from exc
    receipt = verify_receipt(text, public_key=receipt_key)
    what = f"scope {receipt.scope_id}" if receipt.scope_id else "everything"
    click.echo(
        f"The receipt verifies. In {receipt.deployment}, {what} of tenant {receipt.tenant_id} was "
        f"erased at {_time(receipt.erased_unix_s)}: {receipt.keys_destroyed} keys were destroyed. "
        f"From {_time(receipt.effective_unix_s)} on nothing of it is served or opened. Backups of "
        f"the keyring can undo this for as long as the root key {receipt.root_id} exists."
    )


def purge_pending(keyring: Keyring, backend: Backend) -> int:
    """Let a store forget what was erased, and tell how many entries went.

    A purge stays pending until it ran after the last moment at which a replica that had not
    heard of the erasure could have stored something.
    """
    purged = 0
    for purge in pending_purges(keyring):
        began = keyring.now_unix_s()
        purged += backend.purge(Bucket(tenant=purge.tenant_bucket, scope=purge.scope_bucket))
        if began >= purge.sweep_again_unix_s:
            finish_purge(keyring, purge)
    return purged


def _scope_id(pseudonym: str) -> bytes:
    scope_id = decode_base64url(pseudonym)
    if scope_id is None or len(scope_id) != SCOPE_ID_BYTES:
        raise UsageError(
            "The pseudonym is not that of a conversation.",
            hint="It stands in the header x-kvward-conversation-id of every answer.",
        )
    return scope_id


def _time(unix_s: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))
