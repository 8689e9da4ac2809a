"""Decide a body's scope, and put it together again without what the caller said of it.

Pure but for one draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from kvward.errors import KeyringUnavailableError, UsageError
from kvward.gateway.body import Body, has_value, read_text, read_value
from kvward.gateway.owned import MEDIA_NAMES, OWNED_FIELDS, REFUSED_FIELDS
from kvward.gateway.shapes import Shape
from kvward.gateway.spans import Boundary
from kvward.scope import Scope, ScopeIssuer
from kvward.scope.derive import SCOPE_ID_BYTES
from kvward.scope.owner import OWNER_FIELD
from kvward.scope.spans import NONCE_BYTES, SPANS_FIELD, SPANS_LIFETIME_S, Span, encode_spans
from kvward.scope.token import encode_base64url
from kvward.terms import SharingLevel

_MAX_NAME_CHARACTERS = 256
_SUBJECT_BYTES = 32
_USER_FIELDS = ("safety_identifier", "user")
_TOOL_ARGUMENTS = frozenset({"arguments"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A request as the engine may see it, and what it runs under.

    Attributes:
        pseudonym: Of the scope; names it for an erasure.
        scope: None when the keyring did not answer, and it runs in a scope of nobody's.
    """

    body: bytes
    pseudonym: str
    scope: Scope | None


def strip(body: Body, *, shape: Shape) -> Body:
    """Return a body without anything by which a caller could choose a scope.

    Raises:
        UsageError: a field is refused.
    """
    for name, why in (*REFUSED_FIELDS.items(), *shape.refused.items()):
        if has_value(body, name):
            raise UsageError(f"{name} is not available here: it {why}.")
    for name in shape.media_fields:
        _check_media(body, name)
    kept = {name: value for name, value in body.items() if name not in OWNED_FIELDS}
    for name in shape.inner:
        if name in kept:
            kept[name] = _strip_inner(kept[name], name)
    kept.update({name: msgspec.Raw(value) for name, value in shape.fixed.items()})
    return kept


def rewrite(
    body: Body,
    *,
    shape: Shape,
    tenant: str,
    level: SharingLevel,
    owner_tags: bool,
    conversation: str | None,
    boundary: tuple[SharingLevel, Boundary] | None,
    issuer: ScopeIssuer,
    now_unix_s: int,
    draw: Callable[[int], bytes],
) -> Rewritten:
    """Give a request its scope and drop what the caller said about it.

    Args:
        shape: Of the body, from the route.
        tenant: From the authenticated principal.
        level: From the policy.
        owner_tags: Whether the engine has a store, and is to be told whose a scope is.
        conversation: Named by the caller, interpreted inside the tenant only. [untrusted]
        boundary: Where the tenant's own leading messages end, and how far they are shared.
        draw: Returns that many random bytes.
    Raises:
        UsageError: a field is refused, or a name has the wrong form.
    """
    kept = strip(body, shape=shape)
    beside: dict[str, object] = {}  # what goes with the token, for whoever verifies it
    scope: Scope | None
    try:
        level, subject = _resolve(
            body,
            shape=shape,
            tenant=tenant,
            level=level,
            conversation=conversation,
            issuer=issuer,
            draw=draw,
        )
        scope = issuer.current(tenant=tenant, level=level, subject=subject)
        token, pseudonym = issuer.token(scope), issuer.pseudonym(scope)
        if owner_tags and scope.level is not SharingLevel.REQUEST:
            beside[OWNER_FIELD] = issuer.owner_tag(scope, token=token)
        wider = None if boundary is None else _wider(body, shape, scope, boundary[0], issuer)
        if boundary is not None and wider is not None:
            span = Span(
                token=issuer.token(wider),
                end_tokens=boundary[1].end_tokens,
                digest=boundary[1].digest,
            )
            beside[SPANS_FIELD] = encode_spans(
                issuer.token_key,
                token=token,
                spans=[span],
                expires_unix_s=now_unix_s + SPANS_LIFETIME_S,
                nonce=draw(NONCE_BYTES),
            )
    except KeyringUnavailableError:
        # SECURITY: without the keyring nobody's scope is known, so the request gets one that no
        # other request has. It costs speed.
        beside = {}
        scope_id = draw(SCOPE_ID_BYTES)
        token, pseudonym = issuer.detached_token(scope_id), encode_base64url(scope_id)
        scope = None
    if beside and shape.takes_transfer:
        kept["kv_transfer_params"] = msgspec.Raw(msgspec.json.encode(beside))
    kept["cache_salt"] = msgspec.Raw(msgspec.json.encode(token))
    return Rewritten(body=msgspec.json.encode(kept), pseudonym=pseudonym, scope=scope)


def _resolve(
    body: Body,
    *,
    shape: Shape,
    tenant: str,
    level: SharingLevel,
    conversation: str | None,
    issuer: ScopeIssuer,
    draw: Callable[[int], bytes],
) -> tuple[SharingLevel, bytes]:
    """Return level and subject; where the subject is unknown, a scope of the request's own."""
    subject: bytes | None = None
    match level:
        case SharingLevel.TENANT:
            return level, b""
        case SharingLevel.USER:
            user = _user(body, shape)
            if user:
                subject = issuer.user_subject(tenant, user)
        case SharingLevel.CONVERSATION:
            if conversation is None:
                conversation = _named_conversation(body, shape)
            if conversation is not None:
                subject = issuer.named_subject(tenant, _checked_name(conversation))
            elif (opening := _opening(body, shape)) is not None:
                subject = issuer.anchor_subject(tenant, opening)
            cache_key = read_text(body, "prompt_cache_key")
            if subject is not None and cache_key:
                subject = issuer.narrowed_subject(tenant, cache_key=cache_key, subject=subject)
        case _:
            pass
    if subject is None:
        return SharingLevel.REQUEST, draw(_SUBJECT_BYTES)
    return level, subject


def _wider(
    body: Body, shape: Shape, scope: Scope, level: SharingLevel, issuer: ScopeIssuer
) -> Scope | None:
    """Return the scope of the leading messages, if it is wider than that of the request."""
    if scope.level is SharingLevel.REQUEST or level.width <= scope.level.width:
        return None
    subject = b""
    if level is SharingLevel.USER:
        user = _user(body, shape)
        if not user:
            return None
        subject = issuer.user_subject(scope.tenant, user)
    return issuer.current(tenant=scope.tenant, level=level, subject=subject)


def _checked_name(name: str) -> str:
    visible = name.isascii() and name.isprintable() and not name.isspace()
    if not name or len(name) > _MAX_NAME_CHARACTERS or not visible:
        raise UsageError(
            f"A conversation's name has 1 to {_MAX_NAME_CHARACTERS} visible ASCII characters."
        )
    return name


def _named_conversation(body: Body, shape: Shape) -> str | None:
    if shape.conversation_field is None:
        return None
    match read_value(body, shape.conversation_field):
        case None:
            return None
        case str(name) | {"id": str(name)}:
            return name
    raise UsageError(f"{shape.conversation_field} is neither a name nor an object with an id.")


def _opening(body: Body, shape: Shape) -> list[bytes] | None:
    try:
        return shape.opening(body)
    except RecursionError as exc:
        raise UsageError("The body is nested too deeply.") from exc


def _user(body: Body, shape: Shape) -> str | None:
    for name in _USER_FIELDS:
        if (user := read_text(body, name)) is not None:
            return user
    metadata = read_value(body, "metadata") if shape.user_in_metadata else None
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    return user if isinstance(user, str) else None


def _strip_inner(raw: msgspec.Raw, name: str) -> msgspec.Raw:
    try:
        inner = msgspec.json.decode(raw, type=Body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise UsageError(f"{name} is not an object.") from exc
    return msgspec.Raw(
        msgspec.json.encode({key: value for key, value in inner.items() if key not in OWNED_FIELDS})
    )


def _check_media(body: Body, name: str) -> None:
    """Refuse parts of a prompt that name stored media, or are embeddings.

    Raises:
        UsageError: there is one.
    """
    raw = bytes(body.get(name, b""))
    # Most prompts need not be decoded: an escape is the only other way to write these letters.
    if b"\\u" not in raw and not any(word.encode() in raw for word in MEDIA_NAMES):
        return
    waiting = [read_value(body, name)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            for word, why in MEDIA_NAMES.items():
                if value.get(word) is not None or value.get("type") == word:
                    raise UsageError(f"{word} is not available here: it {why}.")
            waiting += [item for key, item in value.items() if key not in _TOOL_ARGUMENTS]
