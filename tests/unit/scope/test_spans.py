"""Lists of spans: one spelling, one token, one lifetime; anything else is refused alike."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.errors import ScopeMismatchError
from kvward.scope import RootKey, Scope, ScopeIssuer
from kvward.scope.spans import Span, digest_tokens, encode_spans, verify_spans
from kvward.terms import SharingLevel

ISSUER = ScopeIssuer.from_root_key(RootKey(b"r" * 32), deployment="test")
KEY = ISSUER.token_key
NONCE = bytes(16)
NOW = 1_800_000_000
EXPIRES = NOW + 60


def token_of(tenant: str, level: SharingLevel, subject: bytes = b"") -> str:
    scope = Scope(deployment="test", tenant=tenant, level=level, subject=subject, epoch=0)
    return ISSUER.token(scope)


OWN = token_of("a", SharingLevel.CONVERSATION, b"c" * 32)
WIDE = token_of("a", SharingLevel.TENANT)
NARROW = token_of("a", SharingLevel.USER, b"u" * 32)
SPANS = [
    Span(token=WIDE, end_tokens=2, digest=digest_tokens([1, 2])),
    Span(token=NARROW, end_tokens=3, digest=digest_tokens([1, 2, 3])),
]


def signed(
    spans: list[Span] = SPANS, *, token: str = OWN, expires: int = EXPIRES, nonce: bytes = NONCE
) -> dict[str, Any]:
    return encode_spans(KEY, token=token, spans=spans, expires_unix_s=expires, nonce=nonce)


def verify(value: object, *, token: str = OWN, now: float = NOW) -> tuple[Span, ...]:
    return verify_spans(value, token=token, token_key=KEY, now_unix_s=now)


def refused(value: object, *, token: str = OWN, now: float = NOW) -> bool:
    with pytest.raises(ScopeMismatchError):
        verify(value, token=token, now=now)
    return True


def changed(change: Callable[[Any], object]) -> dict[str, Any]:
    value = copy.deepcopy(signed())
    change(value)
    return value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
ENDS = st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=8, unique=True).map(sorted)


@given(ENDS, st.binary(min_size=32, max_size=32), st.integers(NOW, 2**53), st.binary(max_size=20))
def test_what_was_written_is_read_again_through_json(
    ends: list[int], digest: bytes, expires: int, nonce: bytes
) -> None:
    spans = [Span(token=WIDE, end_tokens=end, digest=digest) for end in ends]
    value = json.loads(json.dumps(signed(spans, expires=expires, nonce=nonce)))
    assert list(verify(value)) == spans


def test_list_says_nothing_of_the_digests_it_was_not_asked_about() -> None:
    assert verify(signed())[0].digest == digest_tokens([1, 2])
    assert len({digest_tokens(ids) for ids in ([], [0], [0, 0], [1], [256], [2**32 - 1])}) == 6


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.update(expires=EXPIRES + 1),
        lambda v: v.update(expires=float(EXPIRES)),
        lambda v: v.update(expires=True),
        lambda v: v.update(expires=None),
        lambda v: v.update(nonce="AAAAAAAAAAAAAAAAAAAAAQ"),
        lambda v: v.update(nonce=v["nonce"] + "="),
        lambda v: v.update(nonce=v["nonce"] + "\n"),
        lambda v: v.update(nonce="é"),
        lambda v: v.update(nonce=None),
        lambda v: v.update(mac=v["mac"][::-1]),
        lambda v: v.update(mac=v["mac"] + "AAAA"),
        lambda v: v.update(mac=""),
        lambda v: v.update(mac=b"bytes"),
        lambda v: v.update(spans=tuple(v["spans"])),
        lambda v: v.update(spans={"0": v["spans"][0]}),
        lambda v: v.update(spans=[tuple(s) for s in v["spans"]]),
        lambda v: v.update(spans=[]),
        lambda v: v["spans"].pop(),
        lambda v: v["spans"].reverse(),
        lambda v: v["spans"].append(v["spans"][1]),
        lambda v: v["spans"][0].append(0),
        lambda v: v["spans"][0].pop(),
        lambda v: v["spans"][0].__setitem__(0, NARROW),
        lambda v: v["spans"][0].__setitem__(0, None),
        lambda v: v["spans"][0].__setitem__(1, 1),
        lambda v: v["spans"][0].__setitem__(1, 2.0),
        lambda v: v["spans"][0].__setitem__(1, True),
        lambda v: v["spans"][0].__setitem__(1, "2"),
        lambda v: v["spans"][0].__setitem__(1, -2),
        lambda v: v["spans"][0].__setitem__(1, 2**64),
        lambda v: v["spans"][0].__setitem__(2, v["spans"][1][2]),
        lambda v: v["spans"][0].__setitem__(2, "AAAA"),
        lambda v: v["spans"][0].__setitem__(2, 7),
        lambda v: v.pop("nonce"),
        lambda v: v.pop("mac"),
        lambda v: v.update(more=1),
    ],
)  # fmt: skip
def test_list_with_one_thing_changed_is_refused(change: Callable[[Any], object]) -> None:
    assert verify(changed(lambda v: None))
    assert refused(changed(change))


def test_list_fits_one_token_only() -> None:
    assert refused(signed(), token=NARROW)
    assert refused(signed(), token="")
    assert refused(signed(token=NARROW))


def test_list_of_another_deployment_is_refused() -> None:
    other = ScopeIssuer.from_root_key(RootKey(b"r" * 32), deployment="other").token_key
    value = encode_spans(other, token=OWN, spans=SPANS, expires_unix_s=EXPIRES, nonce=NONCE)
    assert refused(value)


def test_token_of_another_deployment_is_refused_even_inside_an_authentic_list() -> None:
    foreign = ScopeIssuer.from_root_key(RootKey(b"o" * 32), deployment="test")
    token = foreign.token(
        Scope(deployment="test", tenant="a", level=SharingLevel.TENANT, subject=b"", epoch=0)
    )
    assert refused(signed([Span(token=token, end_tokens=2, digest=bytes(32))]))


def test_list_is_good_until_it_expires_and_not_after() -> None:
    assert verify(signed(expires=NOW), now=NOW)
    assert refused(signed(expires=NOW), now=NOW + 0.001)
    assert refused(signed(expires=NOW), now=float("nan"))


def test_authentic_list_out_of_order_or_too_long_is_refused() -> None:
    def spans(*ends: int) -> list[Span]:
        return [Span(token=WIDE, end_tokens=end, digest=bytes(32)) for end in ends]

    assert verify(signed(spans(*range(1, 9))))
    for ends in [(), (2, 1), (2, 2), (1, 3, 2), (0,), tuple(range(1, 10)), (2**31,)]:
        assert refused(signed(spans(*ends)))


def test_field_given_twice_in_json_is_read_as_one_and_cannot_differ_from_what_was_signed() -> None:
    text = json.dumps(signed())
    twice = text[:-1] + f', "expires": {EXPIRES + 60}}}'
    assert refused(json.loads(twice))
    assert verify(json.loads(text[:-1] + f', "expires": {EXPIRES}}}'))


@given(JSON)
def test_any_json_is_refused_and_nothing_else_is_raised(value: object) -> None:
    assert refused(value)


@given(
    st.sampled_from(["expires", "nonce", "mac", "spans", "item", "token", "end", "digest"]), JSON
)
def test_any_json_in_one_place_of_a_list_is_refused(place: str, value: object) -> None:
    def change(listed: Any) -> None:
        if place in listed:
            listed[place] = value
        elif place == "item":
            listed["spans"][0] = value
        else:
            listed["spans"][0][["token", "end", "digest"].index(place)] = value

    spoiled = changed(change)
    assert spoiled == signed() or refused(spoiled)


def test_half_a_surrogate_pair_is_refused_like_anything_else() -> None:
    value = json.loads(json.dumps(changed(lambda v: v["spans"][0].__setitem__(0, "\ud800"))))
    assert refused(value)


def test_expiry_of_thousands_of_digits_is_refused_like_anything_else() -> None:
    assert refused(changed(lambda v: v.update(expires=10**5000)))
