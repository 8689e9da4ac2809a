"""The published vectors hold, read as another implementation would read them."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvward.canonical import encode
from kvward.errors import ScopeMismatchError
from kvward.scope import RootKey, Scope, ScopeIssuer, TokenKey, verify_token
from kvward.terms import SharingLevel

FOLDER = Path(__file__).parents[2] / "vectors"
CANONICAL = json.loads((FOLDER / "canonical-v1.json").read_text(encoding="utf-8"))
TOKEN = json.loads((FOLDER / "scope-token-v1.json").read_text(encoding="utf-8"))


def field(value: Any) -> Any:
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        match kind:
            case "bytes":
                return bytes.fromhex(content)
            case "integer":
                return int(content)
            case "sequence":
                return [field(item) for item in content]
    return value


@pytest.mark.parametrize("case", CANONICAL["tests"], ids=lambda case: case["comment"])
def test_canonical_encoding_matches_its_vector(case: dict[str, Any]) -> None:
    fields = [field(value) for value in case["fields"]]
    assert encode(case["label"], *fields).hex() == case["encoding"]


def test_canonical_vectors_are_all_different() -> None:
    encodings = [case["encoding"] for case in CANONICAL["tests"]]
    assert len(set(encodings)) == len(encodings) >= 19


@pytest.mark.parametrize("case", TOKEN["valid"], ids=lambda case: case["comment"])
def test_scope_token_matches_its_vector(case: dict[str, Any]) -> None:
    issuer = ScopeIssuer.from_root_key(
        RootKey(bytes.fromhex(TOKEN["root_key"])), deployment=TOKEN["deployment"]
    )
    scope = Scope(
        deployment=TOKEN["deployment"],
        tenant=case["tenant"],
        level=SharingLevel(case["level"]),
        subject=bytes.fromhex(case["subject"]),
        epoch=int(case["epoch"]),
    )
    assert issuer.token(scope) == case["token"]
    verified = verify_token(case["token"], token_key=TokenKey(bytes.fromhex(TOKEN["token_key"])))
    assert verified.scope_id.hex() == case["scope_id"]
    assert verified.epoch == int(case["epoch"])


@pytest.mark.parametrize("case", TOKEN["must_fail"], ids=lambda case: case["comment"])
def test_scope_token_that_must_fail_fails(case: dict[str, Any]) -> None:
    with pytest.raises(ScopeMismatchError):
        verify_token(case["token"], token_key=TokenKey(bytes.fromhex(TOKEN["token_key"])))


def test_scope_ids_of_the_vectors_differ_except_across_epochs() -> None:
    ids = [case["scope_id"] for case in TOKEN["valid"]]
    assert ids[2] == ids[3]
    assert len(set(ids)) == len(ids) - 1
    assert len({case["token"] for case in TOKEN["valid"]}) == len(ids)
