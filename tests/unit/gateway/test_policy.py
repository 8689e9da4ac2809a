"""Policies are read strictly, and identity fails alike for every reason."""

import hashlib
import tomllib
from pathlib import Path

import pytest

from kvward.errors import ConfigError, UnauthenticatedError
from kvward.gateway import generate_api_key, make_policy, render_policy
from kvward.gateway.identity import KeyTable, Principal
from kvward.gateway.policy import Levels, OperatorPolicy
from kvward.keeping import read_policy_file
from kvward.terms import SharingLevel

KEY, DIGEST = generate_api_key()
OTHER_KEY, OTHER_DIGEST = generate_api_key()
VALUES = tomllib.loads(
    render_policy(
        deployment="test",
        tenants={"a": [DIGEST], 'b "quoted"': [OTHER_DIGEST]},
        level=SharingLevel.CONVERSATION,
        upstream="http://127.0.0.1:1",
        keep=False,
    )
)


def policy(**changes: object):
    return make_policy(VALUES | changes, source="test")


def test_rendered_policy_reads_back() -> None:
    read = policy()
    assert [tenant.name for tenant in read.tenants] == ["a", 'b "quoted"']
    assert read.levels.completions is SharingLevel.CONVERSATION
    assert read.upstream_socket is None
    assert policy(upstream="unix:/x/y").upstream_socket == Path("/x/y")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"surprise": 1}, "surprise"),
        ({"levels": {"completions": "tenant"}}, "chat_completions"),
        ({"levels": {"completions": "wide", "chat_completions": "tenant"}}, "wide"),
        ({"levels": {"completions": "public", "chat_completions": "tenant"}}, "public"),
        ({"levels": {"completions": "tenant", "chat_completions": "tenant", "score": "public"}},
         "public"),
        ({"levels": {"completions": "tenant", "chat_completions": "tenant", "audio": "tenant"}},
         "audio"),
        ({"operators": [{"name": "o", "key_sha256": [DIGEST]}]}, "one of each"),
        ({"operators": [{"name": "", "key_sha256": []}]}, "no name"),
        ({"operators": [{"name": "o", "key_sha256": []}, {"name": "o", "key_sha256": []}]},
         "one name"),
        ({"operators": [{"name": "o", "key_sha256": ["x"]}]}, "hex"),
        ({"engine": {"allow": True}}, "allow"),
        ({"tenants": []}, "no tenant"),
        ({"tenants": [{"name": "", "key_sha256": []}]}, "no name"),
        ({"tenants": [{"name": "a", "key_sha256": [KEY]}]}, "hex"),
        ({"tenants": [{"name": "a", "key_sha256": [DIGEST]},
                      {"name": "b", "key_sha256": [DIGEST]}]}, "two tenants"),
        ({"tenants": [{"name": "a", "key_sha256": []}, {"name": "a", "key_sha256": []}]},
         "one name"),
        ({"deployment": ""}, "deployment"),
        ({"upstream": "ftp://x"}, "upstream"),
        ({"upstream": ""}, "upstream"),
        ({"limits": {"max_body_bytes": 0}}, "max_body_bytes"),
        ({"limits": {"max_body": 1}}, "max_body"),
    ],
)  # fmt: skip
def test_policy_that_is_wrong_is_refused_and_says_where(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(**changes)
    assert words in str(caught.value)
    assert KEY not in str(caught.value)


def test_level_has_no_default_and_the_mend_is_named() -> None:
    for missing in ("levels", "tenants", "deployment", "root_key_file"):
        with pytest.raises(ConfigError) as caught:
            make_policy({k: v for k, v in VALUES.items() if k != missing}, source="test")
        if missing == "levels":
            assert "There is no default" in str(caught.value.hint)


def test_unreadable_policy_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_policy_file(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("= 1")
    with pytest.raises(ConfigError, match="not TOML"):
        read_policy_file(tmp_path / "bad.toml")


def test_key_finds_its_tenant_under_either_header() -> None:
    table = KeyTable(policy().tenants, [])
    a = Principal(name="a", is_operator=False)
    assert table.principal_of([(b"authorization", b"Bearer " + KEY.encode())]) == a
    assert table.principal_of([(b"Authorization", b"bearer " + KEY.encode())]) == a
    assert table.principal_of([(b"x-api-key", OTHER_KEY.encode())]).name == 'b "quoted"'
    both = [(b"x-api-key", KEY.encode()), (b"authorization", b"Bearer " + KEY.encode())]
    assert table.principal_of(both) == a


def test_operator_is_no_tenant_even_under_the_same_name() -> None:
    operators = [OperatorPolicy(name="a", key_sha256=[generate_api_key()[1]])]
    key, digest = generate_api_key()
    operators[0].key_sha256.append(digest)
    table = KeyTable(policy().tenants, operators)
    assert table.principal_of([(b"x-api-key", key.encode())]).is_operator
    assert not table.principal_of([(b"x-api-key", KEY.encode())]).is_operator


def test_only_two_levels_must_be_named_and_no_other_is_filled_in() -> None:
    levels = policy().levels
    named = {"chat_completions", "completions"}
    assert all(getattr(levels, f) is None for f in Levels.__struct_fields__ if f not in named)
    more = {"chat_completions": "tenant", "completions": "tenant", "score": "request"}
    assert policy(levels=more).levels.score is SharingLevel.REQUEST
    assert policy(levels=more).levels.pooling is None


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", KEY.encode())],
        [(b"authorization", b"Basic " + KEY.encode())],
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", b"Bearer " + DIGEST.encode())],
        [(b"x-api-key", KEY.encode()), (b"authorization", b"Bearer " + OTHER_KEY.encode())],
        [(b"x-api-key", KEY.encode()), (b"x-api-key", OTHER_KEY.encode())],
        [(b"x-api-key", KEY.encode()), (b"authorization", b"Basic x")],
    ],
    ids=range(9),
)
def test_every_failure_to_authenticate_looks_the_same(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        KeyTable(policy().tenants, []).principal_of(headers)
    assert str(caught.value) == "The API key is missing or not valid."


def test_generated_key_is_long_and_only_its_hash_is_kept() -> None:
    key, digest = generate_api_key()
    assert len(key) >= 50
    assert hashlib.sha256(key.encode()).hexdigest() == digest
    assert key != KEY
    assert key not in render_policy(
        deployment="d", tenants={"a": [digest]}, level=SharingLevel.TENANT, upstream="", keep=False
    )


def test_written_policy_names_operators_and_no_span_is_shared_by_default(tmp_path: Path) -> None:
    _, tenant = generate_api_key()
    _, operator = generate_api_key()
    text = render_policy(
        deployment="d",
        tenants={"a": [tenant]},
        operators={"o": [operator]},
        level=SharingLevel.CONVERSATION,
        upstream="http://127.0.0.1:1",
        keep=False,
    )
    policy = make_policy(tomllib.loads(text), source="written")
    assert policy.operators == [OperatorPolicy(name="o", key_sha256=[operator])]
    assert policy.spans.system is None


@pytest.mark.parametrize("level", ["public", "request", "conversation"])
def test_span_is_shared_in_a_tenant_or_user_and_nothing_else(level: str) -> None:
    _, digest = generate_api_key()
    text = render_policy(
        deployment="d", tenants={"a": [digest]}, level=SharingLevel.CONVERSATION,
        upstream="http://127.0.0.1:1", keep=False,
    )  # fmt: skip
    values = tomllib.loads(text) | {"spans": {"system": level}}
    with pytest.raises(ConfigError, match="span"):
        make_policy(values, source="written")


def test_reserved_name_is_no_tenants() -> None:
    _, digest = generate_api_key()
    text = render_policy(
        deployment="d", tenants={"kvward/public": [digest]}, level=SharingLevel.TENANT,
        upstream="http://127.0.0.1:1", keep=False,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="reserved"):
        make_policy(tomllib.loads(text), source="written")
