"""Reading contracts: what is refused, and that equal contracts have equal bytes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator

from contract_documents import EXAMPLE, contract_of, example, with_value
from kvward.contract import (
    canonical_json,
    contract_digest,
    contract_schema,
    parse_contract,
    read_contract,
)
from kvward.errors import ContractError

SCHEMA = Path(__file__).parents[3] / "docs" / "spec" / "contract-v1.schema.json"


def as_json(value: object) -> bytes:
    return msgspec.json.encode(value)


def test_example_is_the_same_contract_in_both_languages() -> None:
    contract = read_contract(EXAMPLE)
    again = parse_contract(canonical_json(contract), source="again", as_json=True)
    assert again == contract == contract_of(example())
    assert contract_digest(again) == contract_digest(contract)


def test_order_of_a_set_does_not_change_the_digest_and_anything_else_does() -> None:
    base = example()
    turned = with_value(base, "tiers", base["tiers"][::-1])
    assert contract_digest(contract_of(turned)) == contract_digest(contract_of(base))
    other = with_value(base, "clauses.lifetime.max_age_s", 86_399)
    assert contract_digest(contract_of(other)) != contract_digest(contract_of(base))


def test_published_schema_is_that_of_the_types_and_takes_the_example() -> None:
    assert json.loads(SCHEMA.read_text()) == contract_schema()
    Draft202012Validator.check_schema(contract_schema())
    validator = Draft202012Validator(contract_schema())
    validator.validate(json.loads(canonical_json(read_contract(EXAMPLE))))
    unknown = json.loads(as_json(with_value(example(), "clauses.scope.anything", 1)))
    assert not validator.is_valid(unknown)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("clauses.scope.anything", 1, "clauses.scope"),
        ("clauses.scope.routes.0.level", "everybody", "level"),
        ("clauses.lifetime.max_age_s", -1, "max_age_s"),
        ("clauses.lifetime.max_age_s", 1.5, "max_age_s"),
        ("clauses.secrecy.encrypted", "yes", "encrypted"),
        ("clauses.evidence.confidence", 1, "confidence"),
        ("clauses.scope.public", [{"name": "a", "digest": "sha256:AB"}], "digest"),
        ("deployment", "a\nb", "deployment"),
        ("clauses.scope.tiers.attic", "enforced", "attic"),
        ("clauses.erasure", {}, "erasure"),
        ("published", "yesterday", "published"),
    ],
)
def test_what_a_contract_cannot_hold_is_refused_and_its_place_named(
    path: str, value: object, where: str
) -> None:
    with pytest.raises(ContractError) as caught:
        contract_of(with_value(example(), path, value))
    assert where in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"format": "kvward contract 2"}'])
@pytest.mark.parametrize("language", [True, False])
def test_what_is_no_contract_is_refused(data: bytes, language: bool) -> None:
    with pytest.raises(ContractError):
        parse_contract(data, source="test", as_json=language)


def test_json_that_says_a_thing_twice_is_refused() -> None:
    text = as_json(example()).decode()
    with pytest.raises(ContractError, match="twice"):
        parse_contract(
            text.replace('"version":1', '"version":1,"version":2').encode(),
            source="test",
            as_json=True,
        )


def test_deep_and_long_input_is_refused_without_more(tmp_path: Path) -> None:
    with pytest.raises(ContractError):
        parse_contract(b"[" * 900_000, source="test", as_json=True)
    with pytest.raises(ContractError):
        parse_contract(b"a=" + b"[" * 900_000, source="test", as_json=False)
    long = tmp_path / "contract.toml"
    long.write_bytes(b"#" * 1_000_001)
    with pytest.raises(ContractError, match="longer"):
        read_contract(long)
    with pytest.raises(ContractError, match="cannot be read"):
        read_contract(tmp_path / "none.toml")
