"""OpenAI's completions, chat and responses, and three servers that speak them their own way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from fakes.engine import MODEL, Asked, Fake, Generated

DONE = b"data: [DONE]\n\n"


class OpenAIFake(Fake):
    """The provider itself: only known fields, counters in details, prompts of 1,024 or more."""

    owner = "system"
    min_cached_words = 1_024
    knows = frozenset(
        {"model", "prompt", "messages", "input", "max_tokens", "max_completion_tokens",
         "max_output_tokens", "temperature", "stream", "stream_options", "logprobs",
         "top_logprobs", "include", "store", "user", "prompt_cache_key", "safety_identifier",
         "metadata"}
    )  # fmt: skip
    models = True

    def routes(self) -> list[web.RouteDef]:
        listed = [web.get("/v1/models", self.list_models)] if self.models else []
        return [
            *listed,
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/responses", self.responses),
        ]

    async def list_models(self, request: web.Request) -> web.Response:
        if self.key_of(request) not in self.keys:
            return self.refuse(401, "Incorrect API key provided")
        card = {"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": self.owner}
        return web.json_response({"object": "list", "data": [card]})

    def unknown(self, asked: Asked) -> web.Response | None:
        strange = sorted(set(asked.body) - self.knows)
        if strange:
            return self.refuse(400, f"Unknown parameter: '{strange[0]}'.")
        return None

    def details(self, made: Generated) -> dict[str, Any] | None:
        if not self.reports:
            return None
        return {"cached_tokens": made.cached, "cache_write_tokens": made.created}

    def usage(self, made: Generated) -> dict[str, Any]:
        details = self.details(made)
        return {
            "prompt_tokens": made.prompt,
            "completion_tokens": len(made.words),
            "total_tokens": made.prompt + len(made.words),
            **({} if details is None else {"prompt_tokens_details": details}),
        }

    def extras(self, made: Generated) -> dict[str, Any]:
        """What the server adds to the last part and the whole answer."""
        return {}

    # Completions.

    async def completions(self, request: web.Request) -> web.StreamResponse:
        asked = await self.take(request)
        if (refusal := self.unknown(asked)) is not None:
            return refusal
        body = asked.body
        made = self.generate(
            asked, body["prompt"], tokens=body.get("max_tokens", 16),
            logprobs=body.get("logprobs") or 0,
        )  # fmt: skip
        return await self.answer(
            request,
            stream=bool(body.get("stream")),
            parts=self.completion_parts(asked, made),
            whole=self.completion(
                made,
                [self.text_choice(made, range(len(made.words)), "length")],
            ),
        )

    def completion(self, made: Generated, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1_700_000_000,
            "model": MODEL,
            "choices": choices,
            "usage": self.usage(made),
            **self.extras(made),
        }

    def text_choice(self, made: Generated, places: range, reason: str | None) -> dict[str, Any]:
        return {
            "index": 0,
            "text": "".join(" " + made.words[place] for place in places),
            "logprobs": self.text_logprobs(made, places),
            "finish_reason": reason,
        }

    def text_logprobs(self, made: Generated, places: range) -> Any:
        if not made.logprobs:
            return None
        return {
            "text_offset": [0 for _ in places],
            "token_logprobs": [-0.25 for _ in places],
            "tokens": [" " + made.words[place] for place in places],
            "top_logprobs": [dict(made.alternatives(place)) for place in places],
        }

    def completion_parts(self, asked: Asked, made: Generated) -> Iterator[Any]:
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL}
        last = len(made.words) - 1
        for place in range(len(made.words)):
            reason = "length" if place == last else None
            yield head | {"choices": [self.text_choice(made, range(place, place + 1), reason)]}
        if (asked.body.get("stream_options") or {}).get("include_usage"):
            yield head | {"choices": [], "usage": self.usage(made)} | self.extras(made)
        yield DONE

    # Chat.

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = await self.take(request)
        if (refusal := self.unknown(asked)) is not None:
            return refusal
        body = asked.body
        tokens = body.get("max_completion_tokens", body.get("max_tokens", 16))
        wanted = body.get("top_logprobs", 1) if body.get("logprobs") else 0
        made = self.generate(asked, body["messages"][0]["content"], tokens=tokens, logprobs=wanted)
        everything = range(len(made.words))
        whole = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": " ".join(made.words),
                        "refusal": None,
                    },
                    "logprobs": self.chat_logprobs(made, everything),
                    "finish_reason": "length",
                }
            ],
            "usage": self.usage(made),
            **self.extras(made),
        }
        return await self.answer(
            request,
            stream=bool(body.get("stream")),
            parts=self.chat_parts(asked, made),
            whole=whole,
        )

    def chat_logprobs(self, made: Generated, places: range) -> Any:
        if not made.logprobs:
            return None
        return {"content": [self.token(made, place) for place in places], "refusal": None}

    def token(self, made: Generated, place: int) -> dict[str, Any]:
        pairs = made.alternatives(place)
        entries = [{"token": t, "logprob": v, "bytes": list(t.encode())} for t, v in pairs]
        return entries[0] | {"top_logprobs": entries}

    def chat_parts(self, asked: Asked, made: Generated) -> Iterator[Any]:
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}

        def chunk(delta: dict[str, Any], logprobs: Any, reason: str | None) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
            return head | {"choices": [choice]}

        yield chunk({"role": "assistant", "content": ""}, None, None)
        for place, word in enumerate(made.words):
            text = word if place == 0 else " " + word
            yield chunk({"content": text}, self.chat_logprobs(made, range(place, place + 1)), None)
        yield chunk({}, None, "length")
        if (asked.body.get("stream_options") or {}).get("include_usage"):
            yield head | {"choices": [], "usage": self.usage(made)} | self.extras(made)
        yield DONE

    # Responses.

    async def responses(self, request: web.Request) -> web.StreamResponse:
        asked = await self.take(request)
        if (refusal := self.unknown(asked)) is not None:
            return refusal
        body = asked.body
        if self.owner == "system" and body.get("max_output_tokens", 16) < 16:
            return self.refuse(400, "Invalid 'max_output_tokens': integer below minimum value.")
        listed = "message.output_text.logprobs" in (body.get("include") or [])
        made = self.generate(
            asked, body["input"], tokens=body.get("max_output_tokens", 16),
            logprobs=body.get("top_logprobs", 0) if listed else 0,
        )  # fmt: skip
        return await self.answer(
            request,
            stream=bool(body.get("stream")),
            parts=self.response_parts(made),
            whole=self.response(made, "incomplete"),
        )

    def response_usage(self, made: Generated) -> dict[str, Any]:
        return {
            "input_tokens": made.prompt,
            "input_tokens_details": {
                "cached_tokens": made.cached,
                "cache_write_tokens": made.created,
            },
            "output_tokens": len(made.words),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": made.prompt + len(made.words),
        }

    def response(self, made: Generated, status: str) -> dict[str, Any]:
        begun = status == "in_progress"
        part = {
            "type": "output_text",
            "text": "".join(" " + word for word in made.words),
            "annotations": [],
            "logprobs": [self.token(made, n) for n in range(len(made.words))]
            if made.logprobs
            else [],
        }
        item = {
            "id": "msg_1", "type": "message", "role": "assistant", "status": status,
            "content": [part],
        }  # fmt: skip
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_700_000_000,
            "status": status,
            "error": None,
            "incomplete_details": None if begun else {"reason": "max_output_tokens"},
            "model": MODEL,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "output": [] if begun else [item],
            "usage": None if begun else self.response_usage(made),
        }

    def response_parts(self, made: Generated) -> Iterator[Any]:
        number = 0

        def event(kind: str, **fields: Any) -> dict[str, Any]:
            nonlocal number
            number += 1
            return {"type": kind, "sequence_number": number - 1, **fields}

        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        yield event("response.created", response=self.response(made, "in_progress"))
        yield event("response.in_progress", response=self.response(made, "in_progress"))
        yield event(
            "response.output_item.added",
            output_index=0,
            item={"id": "msg_1", "type": "message", "role": "assistant", "content": []},
        )
        for n, word in enumerate(made.words):
            logprobs = [self.token(made, n)] if made.logprobs else []
            yield event("response.output_text.delta", **place, delta=" " + word, logprobs=logprobs)
        text = "".join(" " + word for word in made.words)
        yield event("response.output_text.done", **place, text=text, logprobs=[])
        yield event("response.incomplete", response=self.response(made, "incomplete"))


class VLLMFake(OpenAIFake):
    """vLLM 0.32.0 with --enable-prompt-tokens-details: salts, two counters, the Messages route."""

    owner = "vllm"
    min_cached_words = 1
    knows = OpenAIFake.knows | {"cache_salt"}

    def unknown(self, asked: Asked) -> web.Response | None:
        return None  # further fields are ignored with a warning in the log

    def routes(self) -> list[web.RouteDef]:
        return [
            *super().routes(),
            web.get("/version", self.version),
            web.post("/v1/messages", self.messages),
        ]

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    def details(self, made: Generated) -> dict[str, Any] | None:
        return {"cached_tokens": made.cached} if self.reports else None

    async def messages(self, request: web.Request) -> web.StreamResponse:
        from fakes.anthropic import answer_message

        return await answer_message(self, request)


class SGLangFake(OpenAIFake):
    """SGLang with --enable-cache-report: the count is left out when it is zero."""

    owner = "sglang"
    min_cached_words = 1

    def unknown(self, asked: Asked) -> web.Response | None:
        return None

    def scope_of(self, asked: Asked) -> str:
        return str(asked.body.get("cache_salt", "")) + "/" + str(asked.body.get("extra_key", ""))

    def error(self, message: str, status: int) -> dict[str, Any]:
        return {"object": "error", "message": message, "type": "server_error", "code": status}

    def details(self, made: Generated) -> dict[str, Any] | None:
        return {"cached_tokens": made.cached} if self.reports and made.cached else None

    def usage(self, made: Generated) -> dict[str, Any]:
        return super().usage(made) | {"reasoning_tokens": 0}

    def extras(self, made: Generated) -> dict[str, Any]:
        if not self.asked[-1].body.get("return_cached_tokens_details"):
            return {}
        return {"sglext": {"cached_tokens_details": {"device": made.cached, "host": 0}}}

    def without_usage(self, value: Any) -> Any:
        cleaned = super().without_usage(value)
        if isinstance(cleaned, dict):
            cleaned.pop("sglext", None)
        return cleaned


class TGIFake(OpenAIFake):
    """Text Generation Inference: no counter of reuse, five logprobs, errors of its own."""

    owner = MODEL
    min_cached_words = 1

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/info", self.info),
            web.get("/v1/models", self.list_models),
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
        ]

    async def info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"model_id": MODEL, "router": "text-generation-router", "version": "3.3.6"}
        )

    def unknown(self, asked: Asked) -> web.Response | None:
        if asked.body.get("top_logprobs", 0) > 5:
            return self.refuse(422, "Input validation error: `top_n_tokens` must be >= 0 and <= 5")
        return None

    def error(self, message: str, status: int) -> dict[str, Any]:
        return {"error": message, "error_type": "validation"}

    def details(self, made: Generated) -> dict[str, Any] | None:
        return None

    def text_logprobs(self, made: Generated, places: range) -> Any:
        return None
