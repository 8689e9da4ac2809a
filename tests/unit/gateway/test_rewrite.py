"""What a caller says about its scope never reaches the engine."""

import json
import secrets

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.errors import KeyringUnavailableError, UsageError
from kvward.gateway.body import parse_body
from kvward.gateway.owned import OWNED_FIELDS, REFUSED_FIELDS
from kvward.gateway.rewrite import Rewritten, rewrite
from kvward.gateway.shapes import CHAT as CHAT_SHAPE
from kvward.scope import RootKey, ScopeIssuer, TenantKey, verify_token
from kvward.scope.owner import OWNER_FIELD, verify_owner
from kvward.terms import SharingLevel

ISSUER = ScopeIssuer.from_root_key(RootKey(b"r" * 32), deployment="test")
JSON = b"application/json"


def send(
    body: bytes | dict[str, object],
    *,
    tenant: str = "a",
    level: SharingLevel = SharingLevel.CONVERSATION,
    conversation: str | None = None,
) -> Rewritten:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return rewrite(
        parse_body(content, content_type=JSON),
        shape=CHAT_SHAPE,
        tenant=tenant,
        level=level,
        owner_tags=False,
        conversation=conversation,
        boundary=None,
        issuer=ISSUER,
        now_unix_s=0,
        draw=secrets.token_bytes,
    )


def salt(rewritten: Rewritten) -> str:
    value = json.loads(rewritten.body)["cache_salt"]
    assert isinstance(value, str)
    return value


class NoKeyring:
    """A keyring that does not answer."""

    def tenant_id(self, tenant: str) -> bytes:
        raise KeyringUnavailableError("It does not answer.")

    def tenant_key(self, tenant: str) -> TenantKey:
        raise KeyringUnavailableError("It does not answer.")

    def writing_epoch(self, tenant: str, scope_id: bytes) -> int:
        raise KeyringUnavailableError("It does not answer.")


def test_without_the_keyring_a_request_runs_in_a_scope_of_its_own() -> None:
    issuer = ScopeIssuer(NoKeyring(), ISSUER.token_key, epochs=NoKeyring(), deployment="test")
    rewritten = [
        rewrite(
            parse_body(json.dumps(CHAT).encode(), content_type=JSON),
            shape=CHAT_SHAPE,
            tenant="a",
            level=level,
            owner_tags=True,
            conversation="x",
            boundary=None,
            issuer=issuer,
            now_unix_s=0,
            draw=secrets.token_bytes,
        )
        for level in (SharingLevel.CONVERSATION, SharingLevel.TENANT)
        for _ in range(2)
    ]
    assert {r.scope for r in rewritten} == {None}
    assert len({salt(r) for r in rewritten}) == len({r.pseudonym for r in rewritten}) == 4
    for each in rewritten:
        verify_token(salt(each), token_key=ISSUER.token_key)
        assert "kv_transfer_params" not in json.loads(each.body)


def test_owner_tag_goes_with_every_level_that_is_stored() -> None:
    for level in (SharingLevel.REQUEST, SharingLevel.CONVERSATION, SharingLevel.TENANT):
        rewritten = rewrite(
            parse_body(
                json.dumps(CHAT | {"kv_transfer_params": {OWNER_FIELD: "victim"}}).encode(),
                content_type=JSON,
            ),
            shape=CHAT_SHAPE,
            tenant="a",
            level=level,
            owner_tags=True,
            conversation="x",
            boundary=None,
            issuer=ISSUER,
            now_unix_s=0,
            draw=secrets.token_bytes,
        )
        value = json.loads(rewritten.body)
        if level is SharingLevel.REQUEST:
            assert "kv_transfer_params" not in value
            continue
        tag = value["kv_transfer_params"][OWNER_FIELD]
        owner = verify_owner(tag, token=salt(rewritten), token_key=ISSUER.token_key)
        assert rewritten.scope is not None
        assert owner.scope_id == ISSUER.scope_id(rewritten.scope)


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("name", sorted(OWNED_FIELDS))
def test_owned_field_never_reaches_the_engine(name: str) -> None:
    forged = {"cache_salt": "victim", "session_id": "victim"}
    forged_body = send(CHAT | {name: forged if name != "prompt_cache_key" else "victim"})
    value = json.loads(forged_body.body)
    assert "victim" not in forged_body.body.decode()
    assert set(value) == {"model", "messages", "cache_salt"}
    verify_token(salt(forged_body), token_key=ISSUER.token_key)


@pytest.mark.parametrize("name", sorted(REFUSED_FIELDS))
def test_refused_field_is_refused_unless_it_asks_for_nothing(name: str) -> None:
    for value in (True, "x", 1, {}, []):
        with pytest.raises(UsageError, match=name):
            send(CHAT | {name: value})
    for value in (None, False):
        send(CHAT | {name: value})


def test_escaped_and_repeated_names_are_one_field() -> None:
    body = rb'{"model":"m","cache\u005fsalt":"victim","cache_salt":"v2","\u0063ache_salt":"v3"}'
    rewritten = send(body, conversation="x")
    assert rewritten.body.count(b"cache") == 1
    assert salt(rewritten) == ISSUER.token(rewritten.scope)


def test_values_pass_byte_for_byte() -> None:
    body = b'{"temperature": 0.10000000000000000555, "x": {"b":1,  "a":[1e400]},'
    body += b' "n":12345678901234567890}'
    sent = send(body, conversation="x").body
    for part in (b"0.10000000000000000555", b'{"b":1,  "a":[1e400]}', b"12345678901234567890"):
        assert part in sent


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'"x"', b"null", b"{", b'{"a":1}x', b"\xef\xbb\xbf{}", '{"a":1}'.encode("utf-16"),
     b'{"a":"\xff"}', b"[" * 100_000],
    ids=range(10),
)  # fmt: skip
def test_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(UsageError):
        send(body)


@pytest.mark.parametrize(
    ("content_type", "taken"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b'application/json;charset="UTF-8"', True),
        (b"application/json; charset=utf-16", False),
        (b"application/json-seq", False),
        (b"text/plain", False),
        (b"multipart/form-data; boundary=application/json", False),
        (b"", False),
    ],
)
def test_only_json_in_utf8_is_parsed(content_type: bytes, taken: bool) -> None:
    if taken:
        parse_body(b"{}", content_type=content_type)
    else:
        with pytest.raises(UsageError):
            parse_body(b"{}", content_type=content_type)


def test_named_conversation_lives_inside_its_tenant() -> None:
    one = salt(send(CHAT, conversation="chat-1"))
    assert one == salt(send(CHAT | {"temperature": 1}, conversation="chat-1"))
    assert one != salt(send(CHAT, conversation="chat-2"))
    assert one != salt(send(CHAT, tenant="b", conversation="chat-1"))


def test_next_turn_finds_the_anchor_of_the_one_before() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "one"}]
    later = [*messages, {"role": "assistant", "content": "a"}, {"role": "user", "content": "two"}]
    first = salt(send({"model": "m", "messages": messages}))
    assert first == salt(send({"model": "m", "messages": later}))
    assert first == salt(
        send(b'{"messages":[{"content":"s","role":"system"},{"content":"one","role":"user"}],'
             b'"model":"m"}')
    )  # fmt: skip
    other_opening = [{"role": "system", "content": "s"}, {"role": "user", "content": "oned"}]
    assert first != salt(send({"model": "m", "messages": other_opening}))
    assert first != salt(send({"model": "m", "messages": messages}, tenant="b"))
    assert first != salt(send({"model": "m2", "messages": messages}))


def test_cache_key_only_narrows() -> None:
    plain = salt(send(CHAT))
    narrowed = salt(send(CHAT | {"prompt_cache_key": "k"}))
    assert narrowed != plain
    assert narrowed == salt(send(CHAT | {"prompt_cache_key": "k"}))
    other = {"model": "m", "messages": [{"role": "user", "content": "other"}]}
    assert narrowed != salt(send(other | {"prompt_cache_key": "k"}))
    assert narrowed != salt(send(CHAT | {"prompt_cache_key": "k"}, tenant="b"))


@pytest.mark.parametrize(
    ("body", "level"),
    [
        (CHAT, SharingLevel.REQUEST),
        ({"model": "m", "prompt": "x"}, SharingLevel.CONVERSATION),
        ({"model": "m", "messages": []}, SharingLevel.CONVERSATION),
        ({"model": "m", "messages": [{"role": "system", "content": "s"}]},
         SharingLevel.CONVERSATION),
        ({"model": "m", "prompt": "x", "prompt_cache_key": "k"}, SharingLevel.CONVERSATION),
        (CHAT, SharingLevel.USER),
        (CHAT | {"user": ""}, SharingLevel.USER),
    ],
)  # fmt: skip
def test_unknown_subject_gives_every_request_a_scope_of_its_own(
    body: dict[str, object], level: SharingLevel
) -> None:
    one, two = send(body, level=level), send(body, level=level)
    assert salt(one) != salt(two)
    assert one.scope.level is SharingLevel.REQUEST


def test_user_level_shares_one_end_user_of_one_tenant() -> None:
    def of(body: dict[str, object], tenant: str = "a") -> str:
        return salt(send(CHAT | body, level=SharingLevel.USER, tenant=tenant))

    assert of({"user": "u"}) == of({"user": "u"}) != of({"user": "v"})
    assert of({"user": "u"}) != of({"user": "u"}, tenant="b")
    assert of({"safety_identifier": "u", "user": "v"}) == of({"user": "u"})


def test_tenant_level_shares_the_tenant_whatever_the_caller_names() -> None:
    def of(body: dict[str, object], tenant: str = "a", conversation: str | None = None) -> str:
        return salt(send(body, level=SharingLevel.TENANT, tenant=tenant, conversation=conversation))

    assert of(CHAT) == of({"model": "m", "prompt": "x"}, conversation="c")
    assert of(CHAT) != of(CHAT, tenant="b")


@pytest.mark.parametrize("name", ["", "x" * 257, "tab\t", "line\n", "é", "\x00", " "])
def test_conversation_name_of_a_wrong_form_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        send(CHAT, conversation=name)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner,
                                                                max_size=3),
    max_leaves=8,
)  # fmt: skip
BODIES = st.dictionaries(
    st.sampled_from([*OWNED_FIELDS, "model", "prompt", "messages", "user", "x"]), JSON_VALUES,
    max_size=6,
)  # fmt: skip


@given(
    one=BODIES,
    two=BODIES,
    level=st.sampled_from([level for level in SharingLevel if level is not SharingLevel.PUBLIC]),
    name=st.none() | st.just("c"),
)
def test_no_two_tenants_ever_share_a_salt_whatever_they_send(
    one: dict[str, object], two: dict[str, object], level: SharingLevel, name: str | None
) -> None:
    salts = []
    for tenant, body in (("a", one), ("b", two)):
        try:
            rewritten = send(body, tenant=tenant, level=level, conversation=name)
        except UsageError:
            return
        value = json.loads(rewritten.body)
        assert not set(value) & (set(OWNED_FIELDS) - {"cache_salt"})
        assert rewritten.scope.tenant == tenant
        assert rewritten.scope.level.width <= level.width
        salts.append(salt(rewritten))
    assert salts[0] != salts[1]


def test_messages_of_a_wrong_type_are_passed_to_the_engine_without_an_anchor() -> None:
    one, two = send({"messages": "x"}), send({"messages": "x"})
    assert salt(one) != salt(two)
    assert msgspec.json.decode(one.body)["messages"] == "x"
