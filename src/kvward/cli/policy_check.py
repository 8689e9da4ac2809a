"""`kvward gateway check`: open everything a policy names, before a server depends on it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kvward.gateway import honour_policy_contract, load_credential, read_policy, summarise_policy
from kvward.keeping import load_public_prefixes


@click.command("check")
@click.argument("policy", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def command(*, policy: Path, as_json: bool) -> None:
    """Read POLICY, open its keys, keyring and store, and say what it decides.

    What a server would stop at is found here, in the environment this command runs in: a contract
    that it cannot honour, too. Exit codes: 0 everything opened, 3 the policy or something it names
    is at fault, 5 a keyring or store does not answer.
    """
    kept = read_policy(policy)
    prefixes = load_public_prefixes(kept.settings, kept.folder)
    load_credential(kept.settings)
    notes = honour_policy_contract(kept, prefixes)
    if kept.settings.keyring is None:
        kept.load_root_key()
    else:
        with kept.keyring() as keyring:
            kept.issuer(keyring)
            if kept.settings.store is not None:
                kept.equivalences(keyring)
                kept.backend().stats()
    lines = dict(summarise_policy(kept.settings, prefixes))
    if notes:
        lines["about the contract"] = " ".join(notes)
    if as_json:
        click.echo(json.dumps(lines, indent=2))
        return
    for name, value in lines.items():
        click.echo(f"{name:22} {value}")
