"""Take a caller's body apart, decide its scope, put it together again. Pure but for one draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kvward.canonical import encode
from kvward.errors import KeyringUnavailableError, UsageError
from kvward.gateway.owned import OWNED_FIELDS, REFUSED_FIELDS
from kvward.scope import Scope, ScopeIssuer
from kvward.scope.derive import SCOPE_ID_BYTES
from kvward.scope.owner import OWNER_FIELD
from kvward.scope.token import encode_base64url
from kvward.terms import SharingLevel

Body = dict[str, msgspec.Raw]

_MAX_NAME_CHARACTERS = 256
_ASKS_FOR_NOTHING = frozenset({b"null", b"false"})
_SUBJECT_BYTES = 32
_USER_FIELDS = ("safety_identifier", "user")


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


def parse_body(content: bytes, *, content_type: bytes) -> Body:
    """Decode the top level of a JSON object. [untrusted]

    Values stay byte for byte as they came; of a field that comes twice the last one stays, under
    whatever escapes its name was written.

    Raises:
        UsageError: the type is not JSON in UTF-8, or the content is not an object.
    """
    media_type, *parameters = (part.strip().lower() for part in content_type.split(b";"))
    charsets = [p.partition(b"=")[2].strip(b'"') for p in parameters if p.startswith(b"charset")]
    if media_type != b"application/json" or any(c not in {b"utf-8", b"utf8"} for c in charsets):
        raise UsageError("The body must have the content type application/json, in UTF-8.")
    try:
        content.decode()  # values that are kept as they came are not decoded below
        return msgspec.json.decode(content, type=Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UsageError("The body is not a JSON object.") from exc


def rewrite(
    body: Body,
    *,
    tenant: str,
    level: SharingLevel,
    owner_tags: bool,
    conversation: str | None,
    issuer: ScopeIssuer,
    draw: Callable[[int], bytes],
) -> Rewritten:
    """Give a request its scope and drop what the caller said about it.

    Args:
        tenant: From the authenticated principal.
        level: From the policy.
        owner_tags: Whether the engine has a store, and is to be told whose a scope is.
        conversation: Named by the caller, interpreted inside the tenant only. [untrusted]
        draw: Returns that many random bytes.
    Raises:
        UsageError: a field is refused, or a name has the wrong form.
    """
    for name, why in REFUSED_FIELDS.items():
        if name in body and bytes(body[name]).strip() not in _ASKS_FOR_NOTHING:
            raise UsageError(f"{name} is not available here: it {why}.")
    kept = {name: value for name, value in body.items() if name not in OWNED_FIELDS}
    scope: Scope | None
    try:
        level, subject = _resolve(
            body, tenant=tenant, level=level, conversation=conversation, issuer=issuer, draw=draw
        )
        scope = issuer.current(tenant=tenant, level=level, subject=subject)
        token, pseudonym = issuer.token(scope), issuer.pseudonym(scope)
        if owner_tags and scope.level is not SharingLevel.REQUEST:
            tag = issuer.owner_tag(scope, token=token)
            kept["kv_transfer_params"] = msgspec.Raw(msgspec.json.encode({OWNER_FIELD: tag}))
    except KeyringUnavailableError:
        # SECURITY: without the keyring nobody's scope is known, so the request gets one that no
        # other request has. It costs speed.
        scope_id = draw(SCOPE_ID_BYTES)
        token, pseudonym = issuer.detached_token(scope_id), encode_base64url(scope_id)
        scope = None
    kept["cache_salt"] = msgspec.Raw(msgspec.json.encode(token))
    return Rewritten(body=msgspec.json.encode(kept), pseudonym=pseudonym, scope=scope)


def _resolve(
    body: Body,
    *,
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
            user = next((u for f in _USER_FIELDS if (u := _text(body, f)) is not None), None)
            if user:
                subject = issuer.user_subject(tenant, user)
        case SharingLevel.CONVERSATION:
            if conversation is not None:
                subject = issuer.named_subject(tenant, _checked_name(conversation))
            elif (opening := _opening(body)) is not None:
                subject = issuer.anchor_subject(tenant, opening)
            cache_key = _text(body, "prompt_cache_key")
            if subject is not None and cache_key:
                subject = issuer.narrowed_subject(tenant, cache_key=cache_key, subject=subject)
        case _:
            pass
    if subject is None:
        return SharingLevel.REQUEST, draw(_SUBJECT_BYTES)
    return level, subject


def _checked_name(name: str) -> str:
    visible = name.isascii() and name.isprintable() and not name.isspace()
    if not name or len(name) > _MAX_NAME_CHARACTERS or not visible:
        raise UsageError(
            f"x-kvward-conversation has 1 to {_MAX_NAME_CHARACTERS} visible ASCII characters."
        )
    return name


def _opening(body: Body) -> list[bytes] | None:
    """Return the messages up to and including the first of the user, in canonical bytes.

    None when there are no messages or none of the user: then nothing anchors a conversation.
    """
    try:
        messages = msgspec.json.decode(body.get("messages", msgspec.Raw(b"[]")))
    except msgspec.DecodeError as exc:
        raise UsageError("messages is not a list.") from exc
    if not isinstance(messages, list):
        return None
    # Everything else that leads the prompt belongs to the opening as well.
    leading = [bytes(body[f]) if f in body else None for f in ("model", "tools")]
    opening = [encode("kvward/opening/v1", leading)]
    for message in messages:
        if not isinstance(message, Mapping):
            return None
        opening.append(msgspec.json.encode(message, order="sorted"))
        if message.get("role") == "user":
            return opening
    return None


def _text(body: Body, name: str) -> str | None:
    try:
        value: Any = msgspec.json.decode(body.get(name, msgspec.Raw(b"null")))
    except msgspec.DecodeError as exc:
        raise UsageError(f"{name} is not text.") from exc
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} is not text.")
    return value
