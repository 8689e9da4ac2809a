"""How each API family writes requests and answers. Stateless; what is read goes to an `Answer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvward.audit.exchange import Call
from kvward.audit.target.answer import Answer
from kvward.audit.target.wire import (
    Framing,
    WireError,
    read_error,
    read_top_logprobs,
    to_name,
    to_objects,
)

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


class Shape(Protocol):
    """One route of one API. Every method may be called any number of times, from any task."""

    @property
    def framing(self) -> Framing:
        """Return how a streamed answer is cut into parts."""

    @property
    def end_mark(self) -> bytes | None:
        """Return the data that ends a stream without being JSON; None where there is none."""

    def body(self, call: Call, *, model: str, stream: bool) -> dict[str, Any]:
        """Return the JSON body of a request."""

    def read_event(self, value: dict[str, Any], answer: Answer) -> None:
        """Take one part of a streamed answer. Raises `WireError`. [untrusted]"""

    def read_body(self, value: dict[str, Any], answer: Answer) -> None:
        """Take the body of an answer that is not streamed. Raises `WireError`. [untrusted]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """OpenAI's legacy completions: the prompt reaches the model as it is.

    Attributes:
        extra: Further fields of every body.
    """

    extra: Mapping[str, Any] = field(default_factory=dict)
    framing: Framing = Framing.EVENTS
    end_mark: bytes | None = b"[DONE]"

    def body(self, call: Call, *, model: str, stream: bool) -> dict[str, Any]:
        """Return a body."""
        return {
            "model": model,
            "prompt": call.prompt,
            "max_tokens": call.max_tokens,
            "temperature": 0,
            **_streaming(stream),
            **({"logprobs": call.logprobs} if call.logprobs is not None else {}),
            **self.extra,
        }

    def read_event(self, value: dict[str, Any], answer: Answer) -> None:
        """Read a chunk."""
        _read_head(value, answer)
        for choice in _choices(value):
            answer.mark_first_token()
            answer.add_text(choice.get("text"))
            answer.add_logprobs(read_top_logprobs(choice.get("logprobs")))
            answer.finish_reason = to_name(choice.get("finish_reason")) or answer.finish_reason

    def read_body(self, value: dict[str, Any], answer: Answer) -> None:
        """Read a whole answer, which has the shape of a chunk."""
        self.read_event(value, answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """OpenAI's chat completions: the prompt is one user message.

    Attributes:
        max_tokens_field: OpenAI itself wants `max_completion_tokens`; older servers know only
            `max_tokens`.
    """

    extra: Mapping[str, Any] = field(default_factory=dict)
    max_tokens_field: str = "max_tokens"
    temperature: bool = True
    framing: Framing = Framing.EVENTS
    end_mark: bytes | None = b"[DONE]"

    def body(self, call: Call, *, model: str, stream: bool) -> dict[str, Any]:
        """Return a body."""
        logprobs = {"logprobs": True, "top_logprobs": call.logprobs}
        return {
            "model": model,
            "messages": [{"role": "user", "content": call.prompt}],
            self.max_tokens_field: call.max_tokens,
            **({"temperature": 0} if self.temperature else {}),
            **_streaming(stream),
            **(logprobs if call.logprobs is not None else {}),
            **self.extra,
        }

    def read_event(self, value: dict[str, Any], answer: Answer) -> None:
        """Read a chunk. The one that only names the role comes before any token does."""
        self._read(value, answer, "delta")

    def read_body(self, value: dict[str, Any], answer: Answer) -> None:
        """Read a whole answer."""
        self._read(value, answer, "message")

    def _read(self, value: dict[str, Any], answer: Answer, part: str) -> None:
        _read_head(value, answer)
        for choice in _choices(value):
            said = choice.get(part)
            if said is not None and not isinstance(said, dict):
                raise WireError("a choice is not what the protocol says")
            said = said or {}
            positions = read_top_logprobs(choice.get("logprobs"))
            reason = to_name(choice.get("finish_reason"))
            thought = any(said.get(name) for name in _THOUGHTS)
            if said.get("content") or said.get("tool_calls") or thought or positions or reason:
                answer.mark_first_token()
            answer.add_text(said.get("content"))
            answer.add_logprobs(positions)
            answer.finish_reason = reason or answer.finish_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """OpenAI's Responses API, one text input, nothing stored.

    Attributes:
        min_output_tokens: The API refuses less.
    """

    extra: Mapping[str, Any] = field(default_factory=dict)
    min_output_tokens: int = 1
    temperature: bool = True
    framing: Framing = Framing.EVENTS
    end_mark: bytes | None = b"[DONE]"  # some servers send one, the protocol has none

    def body(self, call: Call, *, model: str, stream: bool) -> dict[str, Any]:
        """Return a body."""
        logprobs = {
            "include": ["message.output_text.logprobs"],
            "top_logprobs": call.logprobs,
        }
        return {
            "model": model,
            "input": call.prompt,
            "max_output_tokens": max(call.max_tokens, self.min_output_tokens),
            **({"temperature": 0} if self.temperature else {}),
            "store": False,
            "stream": stream,
            **(logprobs if call.logprobs is not None else {}),
            **self.extra,
        }

    def read_event(self, value: dict[str, Any], answer: Answer) -> None:
        """Read a typed event."""
        kind = _kind(value)
        if kind == "error":
            answer.error = read_error(value) or to_name(value.get("message")) or "error"
            return
        answer.error = read_error(value) or answer.error
        if kind.endswith(".delta"):
            answer.mark_first_token()
        if kind == "response.output_text.delta":
            answer.add_text(value.get("delta"))
            answer.add_logprobs(read_top_logprobs(value.get("logprobs")))
        response = value.get("response")
        if isinstance(response, dict):
            self._read_response(response, answer, text=False)
            answer.add_counts(value)
        if kind in {"response.completed", "response.incomplete", "response.failed"}:
            answer.mark_first_token()
            answer.finished = True

    def read_body(self, value: dict[str, Any], answer: Answer) -> None:
        """Read a whole response."""
        answer.mark_first_token()
        self._read_response(value, answer, text=True)
        answer.add_counts(value)

    def _read_response(self, value: dict[str, Any], answer: Answer, *, text: bool) -> None:
        answer.add_id(value.get("id"))
        answer.model = to_name(value.get("model")) or answer.model
        answer.error = read_error(value) or answer.error
        status = to_name(value.get("status"))
        if status in {"completed", "incomplete"}:
            details = value.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, dict) else None
            answer.finish_reason = to_name(reason) or status
        elif status in {"failed", "cancelled"}:
            answer.error = answer.error or f"the response is {status}"
        if text:
            for item in to_objects(value.get("output")):
                if item.get("type") == "message":
                    for part in to_objects(item.get("content")):
                        answer.add_text(part.get("text"))
                        answer.add_logprobs(read_top_logprobs(part.get("logprobs")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Anthropic's Messages API, one user message whose end is marked for the cache.

    Without the mark that API caches nothing. Servers that copy the API cache anyway.
    """

    extra: Mapping[str, Any] = field(default_factory=dict)
    temperature: bool = True
    framing: Framing = Framing.EVENTS
    end_mark: bytes | None = b"[DONE]"  # some servers send one, the protocol has none

    def body(self, call: Call, *, model: str, stream: bool) -> dict[str, Any]:
        """Return a body. The API has no logprobs."""
        block = {
            "type": "text",
            "text": call.prompt,
            "cache_control": {"type": "ephemeral"},
        }
        return {
            "model": model,
            "max_tokens": call.max_tokens,
            "messages": [{"role": "user", "content": [block]}],
            **({"temperature": 0} if self.temperature else {}),
            "stream": stream,
            **self.extra,
        }

    def read_event(self, value: dict[str, Any], answer: Answer) -> None:
        """Read a typed event."""
        kind = _kind(value)
        answer.error = read_error(value) or answer.error
        delta = value.get("delta")
        match kind:
            case "message_start":
                message = value.get("message")
                if isinstance(message, dict):
                    answer.add_id(message.get("id"))
                    answer.model = to_name(message.get("model")) or answer.model
                answer.add_counts(value)
            case "content_block_delta":
                answer.mark_first_token()
                answer.add_text(delta.get("text") if isinstance(delta, dict) else None)
            case "message_delta":
                answer.mark_first_token()
                answer.add_counts(value)
                if isinstance(delta, dict):
                    answer.finish_reason = to_name(delta.get("stop_reason"))
            case "message_stop":
                answer.finished = True

    def read_body(self, value: dict[str, Any], answer: Answer) -> None:
        """Read a whole message."""
        answer.error = read_error(value) or answer.error
        answer.mark_first_token()
        answer.add_id(value.get("id"))
        answer.model = to_name(value.get("model")) or answer.model
        answer.finish_reason = to_name(value.get("stop_reason"))
        answer.add_counts(value)
        if answer.error is None:
            for block in to_objects(value.get("content")):
                answer.add_text(block.get("text"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaNative:
    """Ollama's own generate (the prompt as it is) or chat (one user message), as JSON lines."""

    chat: bool
    framing: Framing = Framing.LINES
    end_mark: bytes | None = None

    def body(self, call: Call, *, model: str, stream: bool) -> dict[str, Any]:
        """Return a body. Templates are switched off for a prompt, not for a chat."""
        message = {"role": "user", "content": call.prompt}
        asked = {"messages": [message]} if self.chat else {"prompt": call.prompt, "raw": True}
        logprobs = {"logprobs": True, "top_logprobs": call.logprobs}
        return {
            "model": model,
            **asked,
            "stream": stream,
            "options": {"num_predict": call.max_tokens, "temperature": 0},
            **(logprobs if call.logprobs is not None else {}),
        }

    def read_event(self, value: dict[str, Any], answer: Answer) -> None:
        """Read a line. The last one says `done` and has the counts."""
        answer.error = read_error(value) or answer.error
        if answer.error is not None:
            return
        said = value.get("message") if self.chat else value
        if not isinstance(said, dict):
            raise WireError("a line is not what the protocol says")
        text = said.get("content" if self.chat else "response")
        done = value.get("done") is True
        positions = read_top_logprobs(value.get("logprobs"))
        if text or said.get("thinking") or positions or done:
            answer.mark_first_token()
        answer.add_text(text)
        answer.add_logprobs(positions)
        answer.model = to_name(value.get("model")) or answer.model
        if done:
            answer.finish_reason = to_name(value.get("done_reason")) or answer.finish_reason
            answer.add_counts(value)
            answer.finished = True

    def read_body(self, value: dict[str, Any], answer: Answer) -> None:
        """Read a whole answer, which has the shape of a last line."""
        self.read_event(value, answer)
        if answer.error is None and not answer.finished:
            raise WireError("the answer does not say that it is done")


def _kind(value: dict[str, Any]) -> str:
    """Return the type of an event; that of an error that came without one is "error"."""
    kind = value.get("type")
    if isinstance(kind, str):
        return kind
    if read_error(value) is None:
        raise WireError("an event has no type")
    return "error"


def _streaming(stream: bool) -> dict[str, Any]:
    return {"stream": True, "stream_options": {"include_usage": True}} if stream else {}


def _read_head(value: dict[str, Any], answer: Answer) -> None:
    answer.error = read_error(value) or answer.error
    answer.add_id(value.get("id"))
    answer.model = to_name(value.get("model")) or answer.model
    answer.add_counts(value)


def _choices(value: dict[str, Any]) -> list[dict[str, Any]]:
    return to_objects(value["choices"]) if "choices" in value else []
