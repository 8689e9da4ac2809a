"""Requests as they come over the wire, checked; errors as they go."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from kvward.errors import UsageError
from kvward.lab.interface import LlamaConfig, SamplingParams
from kvward.lab.media import Picture

MAX_BODY_BYTES = 8 << 20
MAX_TOP_LOGPROBS = 20
_DEFAULT_MAX_TOKENS = 16
_MAX_STOPS = 16

BodyType = TypeVar("BodyType", bound=msgspec.Struct)


class BadRequestError(UsageError):
    """A request that is answered with an error. Never leaves the server."""

    code = "usage.request"

    def __init__(
        self,
        message: str,
        *,
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(message, status=status, code=code, param=param)


def error_body(
    message: str, *, status: HTTPStatus, code: str | None = None, param: str | None = None
) -> bytes:
    """Return an error in OpenAI's shape."""
    kinds = {401: "authentication_error", 404: "not_found_error"}
    default = "server_error" if status >= 500 else "invalid_request_error"
    error = {
        "message": message,
        "type": kinds.get(status, default),
        "param": param,
        "code": code,
    }
    return msgspec.json.encode({"error": error})


class StreamOptions(msgspec.Struct):
    """What else a stream carries."""

    include_usage: bool = False


class TransferParams(msgspec.Struct, kw_only=True):
    """What an engine is told about state outside it; everything but the tag is ignored."""

    kvward_owner: str | None = None


class PictureShape(msgspec.Struct, kw_only=True):
    """A picture that stands before the prompt; `pixels` are base64 on the wire."""

    width: int
    height: int
    pixels: bytes


class _Common(msgspec.Struct, kw_only=True):
    model: str
    media: list[PictureShape] = []
    id_slot: int | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    n: int = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool = False
    cache_salt: str | None = None
    kv_transfer_params: TransferParams | None = None

    @property
    def owner_tag(self) -> str | None:
        """Return what says whose the salt is."""
        return None if self.kv_transfer_params is None else self.kv_transfer_params.kvward_owner

    def pictures(self) -> tuple[Picture, ...]:
        """Return the pictures of a request, each behind the one before it."""
        placed = []
        first_token = 0
        for shape in [*self.media, *self.inner_media()]:
            try:
                picture = Picture(
                    pixels=shape.pixels,
                    width=shape.width,
                    height=shape.height,
                    first_token=first_token,
                )
            except UsageError as exc:
                raise BadRequestError(exc.message, param="media") from exc
            placed.append(picture)
            first_token += picture.num_tokens
        return tuple(placed)

    def inner_media(self) -> list[PictureShape]:
        """Return the pictures that stand inside other fields."""
        return []

    def wanted_logprobs(self) -> int | None:
        """Return how many alternatives are wanted; None for no logprobs."""
        return None

    def wanted_tokens(self) -> int | None:
        """Return how many tokens are wanted; None if the caller did not say."""
        return self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the texts that end generation."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > _MAX_STOPS or "" in stops:
            raise BadRequestError(f"Give up to {_MAX_STOPS} stop texts, none empty.", param="stop")
        return tuple(stops)

    @property
    def include_usage(self) -> bool:
        """Tell whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, config: LlamaConfig, *, room: int) -> SamplingParams:
        """Return the checked sampling parameters.

        Args:
            room: Tokens that fit after the prompt.
        """
        for wrong, message, param in [
            (self.n != 1, "This server gives one choice for a prompt.", "n"),
            (self.top_p != 1.0, "This server samples from the whole distribution.", "top_p"),
            (
                not 0 <= self.temperature <= 2,
                "The temperature lies between 0 and 2.",
                "temperature",
            ),
            (self.cache_salt == "", "A cache salt is not empty.", "cache_salt"),
        ]:
            if wrong:
                raise BadRequestError(message, param=param)
        logprobs = self.wanted_logprobs()
        if logprobs is not None and not 0 <= logprobs <= MAX_TOP_LOGPROBS:
            raise BadRequestError(f"Between 0 and {MAX_TOP_LOGPROBS} logprobs.", param="logprobs")
        wanted = self.wanted_tokens()
        if wanted is not None and wanted < 1:
            raise BadRequestError("At least one token is generated.", param="max_tokens")
        return SamplingParams(
            max_tokens=min(_DEFAULT_MAX_TOKENS if wanted is None else wanted, room),
            temperature=self.temperature,
            seed=self.seed,
            top_logprobs=logprobs,
            logit_bias=self._bias(config),
            ignore_eos=self.ignore_eos,
        )

    def _bias(self, config: LlamaConfig) -> dict[int, float]:
        bias = {}
        for key, value in (self.logit_bias or {}).items():
            if not key.isascii() or not key.isdigit() or int(key) >= config.vocab:
                raise BadRequestError(f"{key!r} is not a token id.", param="logit_bias")
            if not -100 <= value <= 100:
                raise BadRequestError("A bias lies between -100 and 100.", param="logit_bias")
            bias[int(key)] = value
        return bias


class CompletionRequest(_Common, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any]
    logprobs: int | None = None

    def wanted_logprobs(self) -> int | None:
        """Return how many alternatives are wanted."""
        return self.logprobs

    @property
    def one_prompt(self) -> str | list[int]:
        """Return the prompt; several are refused."""
        prompt: object = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) != 1:
                raise BadRequestError("This server takes one prompt at a time.", param="prompt")
            prompt = prompt[0]
        try:
            return msgspec.convert(prompt, str | list[int])
        except msgspec.ValidationError as exc:
            raise BadRequestError(
                "A prompt is text or a list of token ids.", param="prompt"
            ) from exc


class ChatRequest(_Common, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None

    def wanted_logprobs(self) -> int | None:
        """Return how many alternatives are wanted."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def wanted_tokens(self) -> int | None:
        """Return how many tokens are wanted, under either name."""
        return self.max_completion_tokens or self.max_tokens

    def inner_media(self) -> list[PictureShape]:
        """Return the pictures in the messages."""
        parts = [part for message in self.messages for part in _picture_parts(message)]
        urls = [part.get("image_url") for part in parts]
        return [_parse_data_url(url.get("url") if isinstance(url, dict) else url) for url in urls]

    def plain_messages(self) -> list[dict[str, Any]]:
        """Return the messages with text content; other kinds of content are refused."""
        if not self.messages:
            raise BadRequestError("A chat has at least one message.", param="messages")
        return [_plain_message(message) for message in self.messages]


def _picture_parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return [p for p in parts if isinstance(p, dict) and p.get("type") == "image_url"]


def _parse_data_url(url: object) -> PictureShape:
    """Read data:image/x-lab;width=W;height=H;base64,PIXELS. [untrusted]"""
    head, comma, pixels = url.partition(",") if isinstance(url, str) else ("", "", "")
    kind, *settings = head.split(";")
    values = dict(setting.partition("=")[::2] for setting in settings)
    if kind != "data:image/x-lab" or "base64" not in values or not comma:
        raise BadRequestError(
            "A picture is a data:image/x-lab URL with width, height and base64.", param="messages"
        )
    try:
        return msgspec.convert(
            {"width": values.get("width"), "height": values.get("height"), "pixels": pixels},
            PictureShape,
            strict=False,
        )
    except msgspec.ValidationError as exc:
        raise BadRequestError(f"The picture cannot be read: {exc}.", param="messages") from exc


def _plain_message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        parts = [p for p in content if isinstance(p, dict) and p.get("type") != "image_url"]
        texts = [part.get("text") for part in parts if part.get("type") == "text"]
        if len(texts) + len(_picture_parts(message)) != len(content):
            raise BadRequestError("This model reads text and pictures only.", param="messages")
        content = "".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str) or not isinstance(message.get("role"), str):
        raise BadRequestError("A message has a role and text content.", param="messages")
    return {**message, "content": content}


def parse_body(body: bytes, kind: type[BodyType]) -> BodyType:
    """Decode and check the types of a request. [untrusted]"""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadRequestError(f"The request body cannot be read: {exc}.") from exc
