"""The published JSON Schema of a contract, made from its data types."""

from __future__ import annotations

from typing import Any

import msgspec

from kvward.contract.model import FORMAT, IsolationContract

_ID = "urn:kvward:contract-v1"


def contract_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of `IsolationContract`."""
    (reference,), parts = msgspec.json.schema_components(
        [IsolationContract], ref_template="#/$defs/{name}"
    )
    parts["IsolationContract"]["properties"]["format"] = {"const": FORMAT}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": _ID,
        "title": "kvward isolation contract, version 1",
        **reference,
        "$defs": dict(sorted(parts.items())),
    }
    value: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    return value
