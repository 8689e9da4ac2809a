"""Ollama's own routes: JSON lines, the counts on the last of them; and its Messages route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from fakes.anthropic import answer_message
from fakes.engine import MODEL, Asked, Fake, Generated

COUNTS = ("prompt_eval_count", "prompt_eval_cached_count", "eval_count")


class OllamaFake(Fake):
    """Ollama of autumn 2026, which reports what it reused."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.list_models),
            web.get("/api/version", self.version),
            web.post("/api/generate", self.generate_route),
            web.post("/api/chat", self.chat_route),
            web.post("/v1/messages", self.messages),
        ]

    async def list_models(self, request: web.Request) -> web.Response:
        card = {"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "library"}
        return web.json_response({"object": "list", "data": [card]})

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.40.12"})

    async def messages(self, request: web.Request) -> web.StreamResponse:
        return await answer_message(self, request)

    def scope_of(self, asked: Asked) -> str:
        return ""

    def error(self, message: str, status: int) -> dict[str, Any]:
        return {"error": message}

    def frame(self, value: Any) -> bytes:
        if self.asked and self.asked[-1].path.startswith("/v1/"):
            return super().frame(value)
        return json.dumps(value).encode() + b"\n"

    def without_usage(self, value: Any) -> Any:
        cleaned = super().without_usage(value)
        if isinstance(cleaned, dict):
            return {name: inner for name, inner in cleaned.items() if name not in COUNTS}
        return cleaned

    async def generate_route(self, request: web.Request) -> web.StreamResponse:
        asked = await self.take(request)
        return await self._reply(request, asked, asked.body["prompt"], chat=False)

    async def chat_route(self, request: web.Request) -> web.StreamResponse:
        asked = await self.take(request)
        return await self._reply(request, asked, asked.body["messages"][0]["content"], chat=True)

    async def _reply(
        self, request: web.Request, asked: Asked, prompt: str, *, chat: bool
    ) -> web.StreamResponse:
        body = asked.body
        made = self.generate(
            asked, prompt, tokens=body["options"]["num_predict"],
            logprobs=body.get("top_logprobs", 0) if body.get("logprobs") else 0,
        )  # fmt: skip
        text = "".join(" " + word for word in made.words)
        logprobs = [self._token(made, n) for n in range(len(made.words))]
        whole = self._line(made, text, chat=chat, done=True)
        if made.logprobs:
            whole["logprobs"] = logprobs
        return await self.answer(
            request,
            stream=body.get("stream", True),
            parts=self._lines(made, chat=chat),
            whole=whole,
        )

    def _token(self, made: Generated, place: int) -> dict[str, Any]:
        entries = [
            {"token": t, "logprob": v, "bytes": list(t.encode())}
            for t, v in made.alternatives(place)
        ]
        return entries[0] | {"top_logprobs": entries}

    def _line(self, made: Generated, text: str, *, chat: bool, done: bool) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": text}} if chat else {"response": text}
        line = {"model": MODEL, "created_at": "2026-10-17T23:14:07.4Z", **said, "done": done}
        if done:
            line |= {
                "done_reason": "length",
                "total_duration": 174_560_334,
                "load_duration": 101_397_084,
                "prompt_eval_count": made.prompt,
                "prompt_eval_duration": 13_074_791,
                "eval_count": len(made.words),
                "eval_duration": 52_479_709,
            }
            if self.reports:
                line["prompt_eval_cached_count"] = made.cached
        return line

    def _lines(self, made: Generated, *, chat: bool) -> Iterator[dict[str, Any]]:
        for place, word in enumerate(made.words):
            line = self._line(made, " " + word, chat=chat, done=False)
            if made.logprobs:
                line["logprobs"] = [self._token(made, place)]
            yield line
        yield self._line(made, "", chat=chat, done=True)
