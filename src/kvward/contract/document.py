"""Read a contract from TOML or JSON, and write the one JSON that its digest is made of."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from kvward.contract.model import FORMAT, IsolationContract
from kvward.errors import ContractError

MAX_BYTES = 1_000_000
# Lists whose order says nothing, by the name of their field.
_SETS = frozenset({"tiers", "dimensions", "identity", "of", "visible"})


def read_contract(path: Path) -> IsolationContract:
    """Read a contract file; ".json" is JSON, anything else TOML.

    Raises:
        ContractError: the file cannot be read, or is no contract; the message says where.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise ContractError(f"{path} cannot be read: {exc.strerror}.") from exc
    return parse_contract(data, source=path.name, as_json=path.suffix == ".json")


def parse_contract(data: bytes, *, source: str, as_json: bool) -> IsolationContract:
    """Parse and check a contract's form. What it says is for `kvward.contract.lint`.

    Args:
        data: [untrusted]
        source: What to call it in messages.
    Returns:
        The contract with lists that are sets in one order, so that equal promises are equal.
    Raises:
        ContractError: it is too long, not in its language, or not of this format.
    """
    if len(data) > MAX_BYTES:
        raise ContractError(f"{source} is longer than {MAX_BYTES:,} bytes.")
    try:
        text = data.decode()
        value = (
            json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
            if as_json
            else tomllib.loads(text)
        )
    except (ValueError, RecursionError) as exc:
        language = "JSON" if as_json else "TOML"
        raise ContractError(f"{source} is not {language}: {exc}.") from exc
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ContractError(
            f"{source} is not a contract of this format.",
            hint=f'It begins with format = "{FORMAT}".',
        )
    try:
        return msgspec.convert(_in_order(value), IsolationContract, strict=True)
    except msgspec.ValidationError as exc:
        raise ContractError(
            f"{source}: {exc}.", hint="`kvward contract schema` prints what a contract may hold."
        ) from exc


def canonical_json(contract: IsolationContract) -> bytes:
    """Return the contract as JSON with sorted keys and without spaces.

    Equal contracts have equal bytes, whether they were written as TOML or as JSON.
    """
    return msgspec.json.encode(contract, order="sorted")


def contract_digest(contract: IsolationContract) -> str:
    """Return "sha256:" and the digest of the canonical JSON."""
    return "sha256:" + hashlib.sha256(canonical_json(contract)).hexdigest()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _in_order(value: object, name: str = "") -> object:
    if isinstance(value, dict):
        return {key: _in_order(one, key) for key, one in value.items()}
    if isinstance(value, list):
        items = [_in_order(one) for one in value]
        if name in _SETS and all(isinstance(one, str) for one in items):
            return sorted(items, key=str)
        return items
    return value
