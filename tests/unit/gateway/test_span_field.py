"""The list of spans in a rewritten body: there exactly when policy and levels say so, and ours."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.errors import KeyringUnavailableError, ScopeMismatchError
from kvward.gateway.body import parse_body
from kvward.gateway.rewrite import rewrite, strip
from kvward.gateway.shapes import (
    BATCH,
    CHAT,
    DECISIONS,
    MESSAGES,
    POOLING,
    PROMPT,
    RESPONSES,
    SCORE,
    TEXT,
    TOKENS,
    Shape,
)
from kvward.gateway.spans import Boundary
from kvward.scope import RootKey, ScopeIssuer
from kvward.scope.owner import OWNER_FIELD
from kvward.scope.spans import SPANS_FIELD, Span, verify_spans
from kvward.terms import SharingLevel

ISSUER = ScopeIssuer.from_root_key(RootKey(b"r" * 32), deployment="test")
BOUNDARY = Boundary(end_tokens=5, digest=b"d" * 32)
NOW = 1_800_000_000
MINE = {"role": "user", "content": "hello"}
SHAPES = [CHAT, BATCH, PROMPT, RESPONSES, MESSAGES, POOLING, SCORE, TOKENS, DECISIONS, TEXT]
LEVELS = [
    SharingLevel.REQUEST,
    SharingLevel.CONVERSATION,
    SharingLevel.USER,
    SharingLevel.TENANT,
]


def send(
    body: dict[str, Any] | None = None,
    *,
    tenant: str = "a",
    level: SharingLevel = SharingLevel.CONVERSATION,
    wide: SharingLevel | None = SharingLevel.TENANT,
    conversation: str | None = "c",
    shape: Shape = CHAT,
    owner_tags: bool = False,
    issuer: ScopeIssuer = ISSUER,
) -> dict[str, Any]:
    content = {"model": "m", "messages": [MINE]} if body is None else body
    rewritten = rewrite(
        parse_body(json.dumps(content).encode(), content_type=b"application/json"),
        shape=shape,
        tenant=tenant,
        level=level,
        owner_tags=owner_tags,
        conversation=conversation,
        boundary=None if wide is None else (wide, BOUNDARY),
        issuer=issuer,
        now_unix_s=NOW,
        draw=secrets.token_bytes,
    )
    value: dict[str, Any] = json.loads(rewritten.body)
    return value


def spans(value: dict[str, Any], *, now: float = NOW) -> tuple[Span, ...]:
    listed = value.get("kv_transfer_params", {}).get(SPANS_FIELD)
    if listed is None:
        return ()
    return verify_spans(
        listed, token=value["cache_salt"], token_key=ISSUER.token_key, now_unix_s=now
    )


def scope_token(level: SharingLevel, subject: bytes = b"", tenant: str = "a") -> str:
    return ISSUER.token(ISSUER.current(tenant=tenant, level=level, subject=subject))


@pytest.mark.parametrize("owner_tags", [True, False])
@pytest.mark.parametrize("has_user", [True, False])
@pytest.mark.parametrize("wide", [SharingLevel.USER, SharingLevel.TENANT, None])
@pytest.mark.parametrize("level", LEVELS)
def test_span_is_there_exactly_when_it_is_wider_than_the_request_and_its_subject_is_known(
    level: SharingLevel, wide: SharingLevel | None, has_user: bool, owner_tags: bool
) -> None:
    body = {"model": "m", "messages": [MINE]} | ({"user": "u"} if has_user else {})
    value = send(body, level=level, wide=wide, owner_tags=owner_tags)
    effective = SharingLevel.REQUEST if level is SharingLevel.USER and not has_user else level
    expected = (
        wide is not None
        and effective is not SharingLevel.REQUEST
        and LEVELS.index(wide) > LEVELS.index(effective)
        and (wide is SharingLevel.TENANT or has_user)
    )
    assert bool(spans(value)) is expected
    beside = value.get("kv_transfer_params", {})
    has_owner = owner_tags and effective is not SharingLevel.REQUEST
    assert (SPANS_FIELD in beside, OWNER_FIELD in beside) == (expected, has_owner)
    assert len(beside) == expected + has_owner


def test_span_names_the_tenants_own_scope_and_the_boundary_that_was_found() -> None:
    assert spans(send()) == (
        Span(token=scope_token(SharingLevel.TENANT), end_tokens=5, digest=b"d" * 32),
    )
    body = {"model": "m", "messages": [MINE], "user": "u"}
    subject = ISSUER.user_subject("a", "u")
    (span,) = spans(send(body, wide=SharingLevel.USER))
    assert span.token == scope_token(SharingLevel.USER, subject)


def test_two_tenants_never_share_a_spans_token() -> None:
    body = {"model": "m", "messages": [MINE], "user": "u"}
    for wide in (SharingLevel.USER, SharingLevel.TENANT):
        (one,), (two,) = (spans(send(body, tenant=tenant, wide=wide)) for tenant in ("a", "b"))
        assert one.token != two.token


def test_list_is_good_for_a_minute_and_for_this_request_only() -> None:
    one, two = send(), send(conversation="other")
    assert spans(one, now=NOW + 60)
    with pytest.raises(ScopeMismatchError):
        spans(one, now=NOW + 61)
    assert (
        one["kv_transfer_params"][SPANS_FIELD]["nonce"]
        != send()["kv_transfer_params"][SPANS_FIELD]["nonce"]
    )
    two["kv_transfer_params"] = one["kv_transfer_params"]
    with pytest.raises(ScopeMismatchError):
        spans(two)


def test_request_without_a_conversation_has_no_span() -> None:
    body = {"model": "m", "messages": []}
    assert not spans(send(body, conversation=None))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_protocol_without_the_field_never_gets_it(shape: Shape) -> None:
    value = send({"model": "m", "user": "u"}, shape=shape, level=SharingLevel.USER)
    assert bool(spans(value)) is shape.takes_transfer
    if not shape.takes_transfer:
        assert "kv_transfer_params" not in value


FORGED = send()["kv_transfer_params"][SPANS_FIELD]


EVERYWHERE: list[dict[str, Any]] = [
    {"kv_transfer_params": {SPANS_FIELD: FORGED, "more": 1}},
    {"kv_transfer_params": FORGED},
    {"kv_transfer_params": json.dumps({SPANS_FIELD: FORGED})},
    {"vllm_xargs": {"kv_transfer_params": {SPANS_FIELD: FORGED}}},
    {"extra_args": {"kv_transfer_params": {SPANS_FIELD: FORGED}}},
    {"extra_body": {"kv_transfer_params": {SPANS_FIELD: FORGED}}},
]
INNER: list[dict[str, Any]] = [
    {"extra_args": {"kv_transfer_params": {SPANS_FIELD: FORGED}}},
    {"vllm_xargs": {SPANS_FIELD: FORGED}},
    {"kv_transfer_params": {SPANS_FIELD: FORGED}},
]


@pytest.mark.parametrize("wide", [None, SharingLevel.TENANT])
@pytest.mark.parametrize(
    ("shape", "place"),
    [(shape, place) for shape in SHAPES for place in EVERYWHERE]
    + [(shape, {name: inner}) for shape in SHAPES for name in shape.inner for inner in INNER],
)
def test_callers_own_list_never_survives(
    place: dict[str, Any], shape: Shape, wide: SharingLevel | None
) -> None:
    value = send({"model": "m", "user": "u", **place}, shape=shape, wide=wide)
    text = json.dumps(value)
    assert FORGED["mac"] not in text
    assert "more" not in value.get("kv_transfer_params", {})
    if wide is None:
        assert SPANS_FIELD not in text
    stripped = strip(
        parse_body(json.dumps({"model": "m", **place}).encode(), content_type=b"application/json"),
        shape=shape,
    )
    assert "kv_transfer_params" not in stripped


def test_escaped_and_repeated_names_do_not_survive_either() -> None:
    forged = json.dumps({SPANS_FIELD: FORGED})
    text = (
        '{"model": "m", "messages": [], "kv_transfer_params": 1, '
        f'"\\u006bv_transfer_params": {forged}, "kv_transfer\\u005fparams": {forged}}}'
    )
    rewritten = rewrite(
        parse_body(text.encode(), content_type=b"application/json"),
        shape=CHAT,
        tenant="a",
        level=SharingLevel.CONVERSATION,
        owner_tags=False,
        conversation="c",
        boundary=None,
        issuer=ISSUER,
        now_unix_s=NOW,
        draw=secrets.token_bytes,
    )
    assert SPANS_FIELD.encode() not in rewritten.body


@given(st.dictionaries(st.text(), st.text()))
def test_whatever_a_caller_sends_the_span_is_that_of_its_tenant(fields: dict[str, str]) -> None:
    refused = {"previous_response_id", "store", "background", "prompt_embeds"}
    body = {name: value for name, value in fields.items() if name not in refused}
    value = send(body | {"model": "m", "messages": [MINE]})
    assert [span.token for span in spans(value)] == [scope_token(SharingLevel.TENANT)]


# Without the keyring.


class Epochs:
    """Answers so many times."""

    def __init__(self, num_answers: int) -> None:
        self._left = num_answers

    def writing_epoch(self, tenant: str, scope_id: bytes) -> int:
        self._left -= 1
        if self._left < 0:
            raise KeyringUnavailableError("It does not answer.")
        return 0


def issuer_that_answers(num_answers: int) -> ScopeIssuer:
    return ScopeIssuer(
        ISSUER._keys, ISSUER.token_key, epochs=Epochs(num_answers), deployment="test"
    )


def test_without_the_keyring_there_is_no_span() -> None:
    value = send(owner_tags=True, issuer=issuer_that_answers(0))
    assert "kv_transfer_params" not in value
    assert spans(send(owner_tags=True, issuer=issuer_that_answers(2)))


def test_keyring_that_goes_out_half_way_leaves_nothing_beside_the_token() -> None:
    value = send(owner_tags=True, issuer=issuer_that_answers(1))
    assert "kv_transfer_params" not in value
