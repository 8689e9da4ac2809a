"""What is sent for a call, as data: for the client, and for whoever repeats it by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvward.audit.exchange import Call
from kvward.audit.target.filling import fill, placeholders
from kvward.audit.target.preset import KeyHeader, Preset
from kvward.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Request:
    """An HTTP request.

    Attributes:
        path: Under the base URL.
        headers: With the key that was given. [secret]
        streams: Whether the answer comes as a stream.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    streams: bool


def write_request(preset: Preset, call: Call, *, model: str, stream: bool, key: str) -> Request:
    """Return what is sent for a call. Pure: the same call, the same request.

    Args:
        stream: What the auditor prefers; a route may have its own way.
        key: The tenant's, or a name to stand for it. [secret]
    Raises:
        ConfigError: The preset has no such route, or what the call has does not go there.
    """
    route = preset.routes.get(call.route)
    if route is None:
        has = ", ".join(name.value for name in preset.routes)
        raise ConfigError(f"{preset.title} has no route {call.route}.", hint=f"It has: {has}.")
    streams = stream if route.streams is None else route.streams
    wanted = None if call.logprobs is None else min(call.logprobs, route.max_logprobs) or None
    shaped = route.shape.body(replace(call, logprobs=wanted), model=model, stream=streams)
    body: dict[str, Any] = {}
    headers: dict[str, str] = {}
    if call.salt is not None:
        body = preset.salt_fields(call.route, call.salt)
    if call.image is not None:
        if route.add_image is None:
            raise ConfigError(f"No way is known to send a picture to {call.route} here.")
        shaped = route.add_image(shaped, call)
    if call.forged is not None:
        body |= preset.forged_fields(call.route, call.forged)
        headers = preset.forged_header_values(call.forged)
    return Request(
        method=route.method,
        path=route.path,
        headers={
            **write_identity(preset, model=model, key=key, conversation=call.conversation),
            "content-type": "application/json",
            **({} if preset.keeps_connections or not streams else {"connection": "close"}),
            **headers,
            **call.extra_headers,
        },
        body={**shaped, **body, **call.extra_body},
        streams=streams,
    )


def write_identity(
    preset: Preset, *, model: str, key: str, conversation: str | None
) -> dict[str, str]:
    """Return the headers that say who asks. [secret]"""
    headers = write_key(preset.key_header, key)
    values = {"key": key, "model": model, "conversation": conversation}
    for name, template in preset.headers.items():
        if conversation is not None or "conversation" not in placeholders(template):
            headers[name] = str(fill(template, values))
    return headers


def write_key(header: KeyHeader | None, key: str) -> dict[str, str]:
    """Return the header that holds a key, if one does. [secret]"""
    match header:
        case KeyHeader.BEARER:
            return {header.value: f"Bearer {key}"}
        case KeyHeader.API_KEY:
            return {header.value: key}
        case None:
            return {}
