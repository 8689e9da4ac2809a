"""llama.cpp's server: slots instead of salts, timings beside the usage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from fakes.anthropic import answer_message
from fakes.engine import MODEL, Asked, Generated
from fakes.openai import OpenAIFake


class LlamaCppFake(OpenAIFake):
    """A server with several slots, of which one is chosen by the prompt unless one is named."""

    owner = "llamacpp"
    min_cached_words = 1

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.list_models),
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/messages", self.messages),
        ]

    async def list_models(self, request: web.Request) -> web.Response:
        response = await super().list_models(request)
        response.headers["server"] = "llama.cpp"
        return response

    async def messages(self, request: web.Request) -> web.StreamResponse:
        return await answer_message(self, request)

    def unknown(self, asked: Asked) -> web.Response | None:
        return None

    def scope_of(self, asked: Asked) -> str:
        return str(asked.body.get("id_slot", ""))

    def details(self, made: Generated) -> dict[str, Any] | None:
        return {"cached_tokens": made.cached} if self.reports else None

    def text_logprobs(self, made: Generated, places: range) -> Any:
        # Completions have the shape of chat here.
        return self.chat_logprobs(made, places)

    def extras(self, made: Generated) -> dict[str, Any]:
        if not self.reports:
            return {}
        new = made.prompt - made.cached
        return {
            "timings": {
                "cache_n": made.cached,
                "prompt_n": new,
                "prompt_ms": 30.958,
                "prompt_per_token_ms": 30.958,
                "predicted_n": len(made.words),
                "predicted_ms": 661.064,
            },
            # As its source fills it: the slot after the answer, whatever the README says.
            "tokens_cached": made.prompt + len(made.words) - 1,
        }

    def completion_parts(self, asked: Asked, made: Generated) -> Iterator[Any]:
        for part in super().completion_parts(asked, made):
            yield part if isinstance(part, bytes) else part | {"model": MODEL}

    def without_usage(self, value: Any) -> Any:
        cleaned = super().without_usage(value)
        if isinstance(cleaned, dict):
            cleaned.pop("timings", None)
        return cleaned
