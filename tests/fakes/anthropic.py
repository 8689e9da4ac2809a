"""Anthropic's Messages: what is cached is marked, and counted apart from the rest of the input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from fakes.engine import MODEL, Fake, Generated

KNOWN = frozenset(
    {"model", "max_tokens", "messages", "stream", "temperature", "metadata", "system"}
)


class AnthropicFake(Fake):
    """The provider itself: a key in a header of its own, a version, unknown fields refused."""

    min_cached_words = 1_024

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.list_models),
            web.post("/v1/messages", self.messages),
        ]

    def key_of(self, request: web.Request) -> str:
        return request.headers.get("x-api-key", "")

    def error(self, message: str, status: int) -> dict[str, Any]:
        kinds = {429: "rate_limit_error", 401: "authentication_error", 503: "overloaded_error"}
        kind = kinds.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}

    async def list_models(self, request: web.Request) -> web.Response:
        if "anthropic-version" not in request.headers:
            return self.refuse(400, "anthropic-version: header is required")
        if self.key_of(request) not in self.keys:
            return self.refuse(401, "invalid x-api-key")
        model = {
            "type": "model",
            "id": MODEL,
            "display_name": "Fake 1",
            "created_at": "2026-02-04T00:00:00Z",
        }
        return web.json_response(
            {"data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL}
        )

    async def messages(self, request: web.Request) -> web.StreamResponse:
        if "anthropic-version" not in request.headers:
            return self.refuse(400, "anthropic-version: header is required")
        return await answer_message(self, request, strict=True)


async def answer_message(
    fake: Fake, request: web.Request, *, strict: bool = False
) -> web.StreamResponse:
    """Answer a Messages request from any fake's cache."""
    asked = await fake.take(request)
    strange = sorted(set(asked.body) - KNOWN)
    if strict and strange:
        return fake.refuse(400, f"{strange[0]}: Extra inputs are not permitted")
    (block,) = asked.body["messages"][0]["content"]
    made = fake.generate(asked, block["text"], tokens=asked.body["max_tokens"])
    if strict and "cache_control" not in block:
        made = Generated(made.prompt, 0, 0, made.words)
    return await fake.answer(
        request,
        stream=bool(asked.body.get("stream")),
        parts=_events(made),
        whole=_message(made, done=True),
    )


def _usage(made: Generated) -> dict[str, Any]:
    return {
        "input_tokens": made.prompt - made.cached - made.created,
        "cache_creation_input_tokens": made.created,
        "cache_read_input_tokens": made.cached,
        "output_tokens": len(made.words),
    }


def _message(made: Generated, *, done: bool) -> dict[str, Any]:
    text = {"type": "text", "text": "".join(" " + word for word in made.words)}
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [text] if done else [],
        "stop_reason": "max_tokens" if done else None,
        "stop_sequence": None,
        "usage": _usage(made) if done else _usage(made) | {"output_tokens": 1},
    }


def _events(made: Generated) -> Iterator[dict[str, Any]]:
    def event(kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, **fields}

    yield event("message_start", message=_message(made, done=False))
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield event("ping")
    for word in made.words:
        yield event(
            "content_block_delta", index=0, delta={"type": "text_delta", "text": f" {word}"}
        )
    yield event("content_block_stop", index=0)
    yield event(
        "message_delta",
        delta={"stop_reason": "max_tokens", "stop_sequence": None},
        usage={"output_tokens": len(made.words)},
    )
    yield event("message_stop")
