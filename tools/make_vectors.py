"""Write the test vectors of the formats of this package, or check that they still hold.

Usage: python tools/make_vectors.py [--check]
A vector that changes without a new format version is a defect.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvward.canonical import encode
from kvward.scope import RootKey, Scope, ScopeIssuer, verify_token
from kvward.scope.derive import derive_tenant_key, derive_token_key
from kvward.scope.owner import verify_owner
from kvward.terms import SharingLevel
from ledger_vectors import ledger_vectors
from manifest_vectors import chain_vectors, manifest_vectors
from sealed_vectors import sealed_block_vectors
from spans_vectors import resident_vectors, spans_vectors

FOLDER = Path(__file__).parent.parent / "vectors"

CANONICAL: list[tuple[str, str, list[Any]]] = [
    ("no fields", "a", []),
    ("absent is not empty text", "a", [None]),
    ("empty text", "a", [""]),
    ("empty bytes", "a", [b""]),
    ("empty sequence", "a", [[]]),
    ("split one way", "a", ["ab", "c"]),
    ("split the other way", "a", ["a", "bc"]),
    ("text", "a", ["salt"]),
    ("bytes with the same content", "a", [b"salt"]),
    ("zero", "a", [0]),
    ("false is not zero", "a", [False]),
    ("true is not one", "a", [True]),
    ("negative", "a", [-1]),
    ("large", "a", [2**80]),
    ("digits as text", "a", ["12"]),
    ("digits as integer", "a", [12]),
    ("nested", "a", [["x", [b"y", None]], 7]),
    ("flat like the nested one", "a", ["x", b"y", None, 7]),
    ("not ASCII", "kvward/é/v1", ["日本"]),
]


def _json_field(field: Any) -> Any:
    if isinstance(field, bytes):
        return {"bytes": field.hex()}
    if isinstance(field, list):
        return {"sequence": [_json_field(item) for item in field]}
    if isinstance(field, int) and not isinstance(field, bool):
        return {"integer": str(field)}
    return field


def canonical_vectors() -> dict[str, Any]:
    tests = [
        {
            "id": number,
            "comment": comment,
            "label": label,
            "fields": [_json_field(field) for field in fields],
            "encoding": encode(label, *fields).hex(),
        }
        for number, (comment, label, fields) in enumerate(CANONICAL, start=1)
    ]
    return {"format": "kvward canonical encoding v1", "tests": tests}


def token_vectors() -> dict[str, Any]:
    root = RootKey(bytes(range(32)))
    issuer = ScopeIssuer.from_root_key(root, deployment="vectors")
    valid = []
    cases = [
        ("tenant level", "acme", SharingLevel.TENANT, b"", 0),
        ("another tenant", "acme2", SharingLevel.TENANT, b"", 0),
        ("named conversation", "acme", SharingLevel.CONVERSATION, b"\x01" * 32, 0),
        ("next epoch", "acme", SharingLevel.CONVERSATION, b"\x01" * 32, 1),
        ("user with the same subject", "acme", SharingLevel.USER, b"\x01" * 32, 0),
        ("largest epoch", "acme", SharingLevel.REQUEST, b"\xff" * 32, 2**63 - 1),
    ]
    for number, (comment, tenant, level, subject, epoch) in enumerate(cases, start=1):
        scope = Scope(
            deployment="vectors", tenant=tenant, level=level, subject=subject, epoch=epoch
        )
        token = issuer.token(scope)
        verified = verify_token(token, token_key=issuer.token_key)
        valid.append(
            {
                "id": number,
                "comment": comment,
                "tenant": tenant,
                "level": level.value,
                "subject": subject.hex(),
                "epoch": str(epoch),
                "tenant_key": derive_tenant_key(root, deployment="vectors", tenant=tenant)
                .reveal()
                .hex(),
                "scope_id": verified.scope_id.hex(),
                "token": token,
            }
        )
    good = str(valid[2]["token"])
    head, mac = good.rsplit(".", 1)
    must_fail = [
        ("empty", ""),
        ("other version", "kw2" + good[3:]),
        ("last character of the MAC has unused bits set", head + "." + mac[:-1] + _next(mac[-1])),
        ("first character of the MAC changed", head + "." + _next(mac[0]) + mac[1:]),
        ("epoch changed", good.replace(".0.", ".1.")),
        ("epoch with a leading zero", good.replace(".0.", ".00.")),
        ("epoch with a sign", good.replace(".0.", ".+0.")),
        ("epoch of 64 bits", good.replace(".0.", ".9999999999999999999.")),
        ("trailing newline", good + "\n"),
        ("leading space", " " + good),
        ("padding", good + "="),
        ("MAC cut", good[:-1]),
        ("MAC missing", head),
        ("not ASCII digits in the epoch", good.replace(".0.", ".٠.")),
        ("token of another deployment", _other_deployment(root)),
    ]
    return {
        "format": "kvward scope token v1",
        "deployment": "vectors",
        "root_key": root.reveal().hex(),
        "token_key": derive_token_key(root, deployment="vectors").reveal().hex(),
        "valid": valid,
        "must_fail": [
            {"id": number, "comment": comment, "token": token}
            for number, (comment, token) in enumerate(must_fail, start=1)
        ],
    }


def owner_vectors() -> dict[str, Any]:
    issuer = ScopeIssuer.from_root_key(RootKey(bytes(range(32))), deployment="vectors")
    scope = Scope(
        deployment="vectors", tenant="acme", level=SharingLevel.TENANT, subject=b"", epoch=0
    )
    other = replace(scope, tenant="acme2")
    token, other_token = issuer.token(scope), issuer.token(other)
    tag = issuer.owner_tag(scope, token=token)
    owner = verify_owner(tag, token=token, token_key=issuer.token_key)
    must_fail = [
        ("tag of another token", other_token, tag),
        ("token of another deployment", _other_deployment(RootKey(bytes(range(32)))), tag),
        ("empty tag", token, ""),
        ("empty token", "", tag),
        ("other version", token, "kwo2" + tag[4:]),
        ("tenant id changed", token, tag[:5] + _next(tag[5]) + tag[6:]),
        ("last character of the MAC has unused bits set", token, tag[:-1] + _next(tag[-1])),
        ("trailing newline", token, tag + "\n"),
        ("padding", token, tag + "="),
        ("MAC cut", token, tag[:-1]),
    ]
    return {
        "format": "kvward owner tag v1",
        "token_key": issuer.token_key.reveal().hex(),
        "valid": [
            {
                "id": 1,
                "comment": "tenant level",
                "token": token,
                "tag": tag,
                "tenant_id": owner.tenant_id.hex(),
                "scope_id": owner.scope_id.hex(),
                "epoch": str(owner.epoch),
            }
        ],
        "must_fail": [
            {"id": number, "comment": comment, "token": bad_token, "tag": bad_tag}
            for number, (comment, bad_token, bad_tag) in enumerate(must_fail, start=1)
        ],
    }


def _next(character: str) -> str:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return alphabet[(alphabet.index(character) + 1) % 64]


def _other_deployment(root: RootKey) -> str:
    scope = Scope(
        deployment="other", tenant="acme", level=SharingLevel.TENANT, subject=b"", epoch=0
    )
    return ScopeIssuer.from_root_key(root, deployment="other").token(scope)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    stale = []
    for name, vectors in [
        ("canonical-v1.json", canonical_vectors()),
        ("scope-token-v1.json", token_vectors()),
        ("owner-tag-v1.json", owner_vectors()),
        ("spans-v1.json", spans_vectors()),
        ("sealed-block-v1.json", sealed_block_vectors()),
        ("manifest-v1.json", manifest_vectors()),
        ("ledger-v1.json", ledger_vectors()),
        ("chain-v1.json", chain_vectors() | {"resident": resident_vectors()}),
    ]:
        text = json.dumps(vectors, indent=1, ensure_ascii=False) + "\n"
        path = FOLDER / name
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    for name in stale:
        print(f"vectors/{name} differs from what the code makes.", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
