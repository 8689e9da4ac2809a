"""Scopes, their derivation and their token."""

import copy
import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.errors import ScopeMismatchError
from kvward.scope import RootKey, Scope, ScopeIssuer, TenantKey, TokenKey, verify_token
from kvward.terms import SharingLevel

ROOT = RootKey(bytes(range(32)))
ISSUER = ScopeIssuer.from_root_key(ROOT, deployment="test")


def conversation(tenant: str, name: str, *, epoch: int = 0) -> Scope:
    return Scope(
        deployment="test",
        tenant=tenant,
        level=SharingLevel.CONVERSATION,
        subject=ISSUER.named_subject(tenant, name),
        epoch=epoch,
    )


NAMES = st.text(min_size=1, max_size=5)


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_two_scopes_share_a_token_only_when_equal(
    one: tuple[str, str], two: tuple[str, str]
) -> None:
    tokens = ISSUER.token(conversation(*one)), ISSUER.token(conversation(*two))
    assert (tokens[0] == tokens[1]) is (one == two)


@given(NAMES, NAMES, st.integers(min_value=0, max_value=2**63 - 1))
def test_token_fits_every_engine_and_verifies(tenant: str, name: str, epoch: int) -> None:
    token = ISSUER.token(conversation(tenant, name, epoch=epoch))
    assert len(token) <= 128
    assert not set(token) & set("@/\\\0")
    assert verify_token(token, token_key=ISSUER.token_key).epoch == epoch


def test_token_names_no_tenant() -> None:
    token = ISSUER.token(conversation("acme-bank", "salaries"))
    assert "acme" not in token
    assert "salaries" not in token


def test_every_subject_kind_is_a_kind_of_its_own() -> None:
    subjects = [
        ISSUER.named_subject("a", "x"),
        ISSUER.user_subject("a", "x"),
        ISSUER.anchor_subject("a", [b"x"]),
        ISSUER.narrowed_subject("a", cache_key="x", subject=b"x"),
        ISSUER.named_subject("b", "x"),
        ISSUER.anchor_subject("a", [b"x", b""]),
        ISSUER.anchor_subject("a", [b"", b"x"]),
    ]
    assert len(set(subjects)) == len(subjects)


def test_token_of_another_deployment_is_refused() -> None:
    other = ScopeIssuer.from_root_key(ROOT, deployment="other")
    with pytest.raises(ScopeMismatchError):
        verify_token(ISSUER.token(conversation("a", "x")), token_key=other.token_key)
    with pytest.raises(ScopeMismatchError):
        other.token(conversation("a", "x"))


@given(st.text(max_size=130))
def test_arbitrary_text_is_never_a_token(text: str) -> None:
    with pytest.raises(ScopeMismatchError):
        verify_token(text, token_key=ISSUER.token_key)


def test_every_changed_character_breaks_the_token() -> None:
    token = ISSUER.token(conversation("a", "x", epoch=7))
    for position, character in enumerate(token):
        changed = token[:position] + ("A" if character != "A" else "B") + token[position + 1 :]
        with pytest.raises(ScopeMismatchError):
            verify_token(changed, token_key=ISSUER.token_key)


@pytest.mark.parametrize(
    "fields",
    [
        {"deployment": ""},
        {"tenant": ""},
        {"epoch": -1},
        {"epoch": 2**63},
        {"level": SharingLevel.TENANT},
        {"subject": b""},
    ],
    ids=str,
)
def test_scope_that_makes_no_sense_is_refused(fields: dict[str, object]) -> None:
    valid: dict[str, object] = {
        "deployment": "d",
        "tenant": "t",
        "level": SharingLevel.CONVERSATION,
        "subject": b"s",
        "epoch": 0,
    }
    Scope(**valid)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        Scope(**(valid | fields))  # type: ignore[arg-type]


def test_nothing_about_a_scope_has_a_default() -> None:
    with pytest.raises(TypeError):
        Scope()  # type: ignore[call-arg]
    assert Scope.__init__.__kwdefaults__ is None
    assert Scope.__init__.__defaults__ is None


@pytest.mark.parametrize("kind", [RootKey, TenantKey, TokenKey])
def test_secret_keys_cannot_be_shown_compared_copied_or_pickled(kind: type[RootKey]) -> None:
    key = kind(b"\xab" * 32)
    assert "ab" * 4 not in repr(key) + str(key) + f"{key!r:>10}"
    with pytest.raises(TypeError):
        key == kind(b"\xab" * 32)  # noqa: B015
    with pytest.raises(TypeError):
        hash(key)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            attempt(key)
    assert key.matches(kind(b"\xab" * 32))
    assert not key.matches(kind(b"\xac" * 32))
    with pytest.raises(ValueError, match="32 bytes") as caught:
        kind(b"\xab" * 31)
    assert "\\xab" not in str(caught.value)


def test_keys_of_different_purposes_never_match() -> None:
    for one, two in itertools.permutations([RootKey, TenantKey, TokenKey], 2):
        assert not one(b"k" * 32).matches(two(b"k" * 32))
