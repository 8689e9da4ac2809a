"""The ASGI application: routes, access, and one generation for each request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import msgspec

from kvward.errors import EngineProtocolError, UsageError
from kvward.lab.behaviour import SOUND, Behaviour
from kvward.lab.interface import Engine, GenerationRequest, TokenEvent
from kvward.lab.loading import LoadedModel
from kvward.lab.media import PLACEHOLDER, Picture
from kvward.lab.server.answers import AnswerCache
from kvward.lab.server.bridge import Bridge
from kvward.lab.server.door import Door
from kvward.lab.server.operator import Operator
from kvward.lab.server.shapes import ChatShape, CompletionShape, Piece, Shape, usage
from kvward.lab.server.text import iter_pieces
from kvward.lab.server.wire import (
    MAX_BODY_BYTES,
    BadRequestError,
    ChatRequest,
    CompletionRequest,
    error_body,
    parse_body,
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
_ROUTES = {
    "/health": "GET",
    "/v1/models": "GET",
    "/v1/completions": "POST",
    "/v1/chat/completions": "POST",
    "/v1/load_lora_adapter": "POST",
    "/v1/load_weights": "POST",
    "/v1/cache/erase": "POST",
    "/slots": "POST",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What a server does besides handing requests to its engine.

    Attributes:
        behaviour: The sound one, or one with defects planted.
        scope_by_key: Whether every API key is a scope of its own, see `Door`.
        num_answers: Whole answers that are kept; 0 keeps none.
        allow_updates: Whether callers may load weights.
    """

    behaviour: Behaviour = SOUND
    scope_by_key: bool = False
    num_answers: int = 0
    allow_updates: bool = False


def create_app(
    *,
    engine: Engine,
    model: LoadedModel,
    api_keys: frozenset[str] | None,
    options: ServerOptions | None = None,
) -> Application:
    """Return the application.

    Args:
        engine: Started by the caller, stopped by the caller.
        api_keys: Keys that are let in; None lets everybody in, as engines do by default.
        options: None for a server that only hands requests to its engine.
    """
    server = _LabApplication(engine, model, api_keys, options or ServerOptions())
    return server.handle


class _LabApplication:
    def __init__(
        self,
        engine: Engine,
        model: LoadedModel,
        api_keys: frozenset[str] | None,
        options: ServerOptions,
    ) -> None:
        behaviour = options.behaviour
        self._engine = engine
        self._model = model
        self._door = Door(api_keys, scope_by_key=options.scope_by_key, behaviour=behaviour)
        self._bridge = Bridge(engine, behaviour=behaviour)
        self._answers = None
        if options.num_answers:
            self._answers = AnswerCache(options.num_answers, behaviour=behaviour)
        self._operator = Operator(
            engine,
            self._answers,
            base_name=model.name,
            tokenizer=model.tokenizer,
            allow_updates=options.allow_updates,
        )

    async def handle(self, asgi_scope: Message, receive: Receive, send: Send) -> None:
        """Answer one connection event."""
        if asgi_scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif asgi_scope["type"] == "http":
            try:
                await self._answer(asgi_scope, receive, send)
            except BadRequestError as exc:
                await _send_whole(send, exc.status, exc.body)

    async def _answer(self, asgi_scope: Message, receive: Receive, send: Send) -> None:
        path, method = asgi_scope["path"], asgi_scope["method"]
        if path not in _ROUTES:
            raise BadRequestError(f"There is no route {path}.", status=HTTPStatus.NOT_FOUND)
        if method != _ROUTES[path]:
            raise BadRequestError(
                f"{path} is asked with {_ROUTES[path]}.", status=HTTPStatus.METHOD_NOT_ALLOWED
            )
        if path == "/health":
            await _send_whole(send, HTTPStatus.OK, msgspec.json.encode(self._engine.stats()))
            return
        key = self._door.let_in(asgi_scope["headers"])
        if path == "/v1/models":
            body = msgspec.json.encode({"object": "list", "data": self._cards()})
            await _send_whole(send, HTTPStatus.OK, body)
            return
        body = await _read_body(receive)
        done: dict[str, Any] | None = None
        if path == "/v1/load_lora_adapter":
            done = await self._operator.load_adapter(body)
        elif path == "/v1/load_weights":
            done = await self._operator.load_weights(body)
        elif path == "/v1/cache/erase":
            done = await self._operator.erase(body, lambda salt: self._door.salt(key, salt))
        elif path == "/slots":
            done = await self._operator.slots(body, lambda salt: self._door.salt(key, salt))
        if done is not None:
            await _send_whole(send, HTTPStatus.OK, msgspec.json.encode(done))
            return
        request: CompletionRequest | ChatRequest
        shape: Shape
        tokenizer = self._model.tokenizer
        if path == "/v1/completions":
            request = parse_body(body, CompletionRequest)
            prompt = request.one_prompt
            tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            shape = CompletionShape(model=request.model, tokenizer=tokenizer)
        else:
            request = parse_body(body, ChatRequest)
            try:
                tokens = tokenizer.encode(tokenizer.render_chat(request.plain_messages()))
            except UsageError as exc:
                raise BadRequestError(exc.message, param="messages") from exc
            shape = ChatShape(model=request.model, tokenizer=tokenizer)
        pictures = request.pictures()
        places = sum(picture.num_tokens for picture in pictures)
        tokens = [PLACEHOLDER] * places + tokens
        await self._generate(request, tokens, shape, receive, send, key=key, pictures=pictures)

    def _cards(self) -> list[dict[str, Any]]:
        names = (self._model.name, *self._engine.adapters)
        card = {"object": "model", "created": 0, "owned_by": "kvward"}
        return [{"id": name} | card for name in names]

    async def _generate(
        self,
        request: CompletionRequest | ChatRequest,
        tokens: list[int],
        shape: Shape,
        receive: Receive,
        send: Send,
        *,
        key: bytes,
        pictures: tuple[Picture, ...],
    ) -> None:
        config = self._model.config
        is_base = request.model == self._model.name
        if not is_base and request.model not in self._engine.adapters:
            raise BadRequestError(
                f"There is no model {request.model}.",
                status=HTTPStatus.NOT_FOUND,
                code="model_not_found",
                param="model",
            )
        room = config.max_context_tokens - len(tokens)
        wanted = request.wanted_tokens() or 1
        if room < wanted:
            raise BadRequestError(
                f"The model's context has {config.max_context_tokens} tokens; the prompt has "
                f"{len(tokens)} and {wanted} were to be generated.",
                code="context_length_exceeded",
                param="messages" if isinstance(request, ChatRequest) else "prompt",
            )
        sampling = request.sampling(config, room=room)
        stops = request.stops
        asked = GenerationRequest(
            request_id=uuid4().hex,
            prompt_token_ids=tuple(tokens),
            sampling=sampling,
            cache_salt=self._door.salt(key, request.cache_salt),
            owner_tag=request.owner_tag,
            adapter=None if is_base else request.model,
            pictures=pictures,
            slot_id=request.id_slot,
        )
        shape.headers = self._headers(asked)
        events = self._events(asked)
        counted = _Counted(events, len(tokens))
        pieces = iter_pieces(counted.iterate(), self._model.tokenizer, stops=stops)
        answering = _answer_streaming if request.stream else _answer_whole
        work = asyncio.create_task(answering(request, counted, pieces, shape, send))
        leaving = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not work.done():
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    def _headers(self, request: GenerationRequest) -> list[tuple[bytes, bytes]]:
        if self._answers is None:
            return []
        return [(b"x-cache", b"hit" if self._answers.knows(request) else b"miss")]

    def _events(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        """Return the events of a request, from the engine or of an answer that is kept."""
        if self._answers is None:
            return self._bridge.generate(request)
        kept = self._answers.find(request)
        if kept is not None:
            return _iter_kept(kept)
        return self._answers.keep(request, self._bridge.generate(request))


async def _iter_kept(events: tuple[TokenEvent, ...]) -> AsyncIterator[TokenEvent]:
    for event in events:
        yield event


class _Counted:
    """Counts what passes, for the usage, and closes the engine's request for certain."""

    def __init__(self, events: AsyncIterator[TokenEvent], prompt_tokens: int) -> None:
        self._events = events
        self._prompt_tokens = prompt_tokens
        self._completion_tokens = 0
        self._last_event: TokenEvent | None = None

    async def iterate(self) -> AsyncIterator[TokenEvent]:
        """Yield the events."""
        try:
            async for event in self._events:
                self._completion_tokens += event.token_id is not None
                self._last_event = event
                yield event
        finally:
            await self._events.aclose()  # type: ignore[attr-defined]  # it is a generator

    def usage(self) -> dict[str, Any]:
        """Return the usage so far."""
        return usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            last_event=self._last_event,
        )


async def _answer_whole(
    request: CompletionRequest | ChatRequest,  # noqa: ARG001 - the same arguments for both
    counted: _Counted,
    pieces: AsyncIterator[Piece],
    shape: Shape,
    send: Send,
) -> None:
    try:
        async with contextlib.aclosing(pieces):  # type: ignore[type-var]  # it is a generator
            collected = [piece async for piece in pieces]
    except UsageError as exc:
        raise BadRequestError(exc.message, code="context_length_exceeded") from exc
    except EngineProtocolError as exc:
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        await _send_whole(send, status, error_body(exc.message, status=status))
        return
    whole = Piece(
        text="".join(piece.text for piece in collected),
        events=tuple(event for piece in collected for event in piece.events),
        finish_reason=collected[-1].finish_reason,
    )
    body = shape.envelope([shape.choice(whole, chunk=False)], chunk=False)
    body["usage"] = counted.usage()
    await _send_whole(send, HTTPStatus.OK, msgspec.json.encode(body), headers=shape.headers)


async def _answer_streaming(
    request: CompletionRequest | ChatRequest,
    counted: _Counted,
    pieces: AsyncIterator[Piece],
    shape: Shape,
    send: Send,
) -> None:
    started = False

    async def start() -> None:
        nonlocal started
        if not started:
            started = True
            headers = [*_EVENTS, *shape.headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            opening = shape.opening()
            if opening is not None:
                await _send_event(send, shape.envelope([opening], chunk=True))

    try:
        async with contextlib.aclosing(pieces):  # type: ignore[type-var]  # it is a generator
            async for piece in pieces:
                await start()
                await _send_event(
                    send, shape.envelope([shape.choice(piece, chunk=True)], chunk=True)
                )
    except UsageError as exc:
        raise BadRequestError(exc.message, code="context_length_exceeded") from exc
    except EngineProtocolError as exc:
        await start()
        body = error_body(exc.message, status=HTTPStatus.INTERNAL_SERVER_ERROR)
        await send({"type": "http.response.body", "body": b"data: " + body + b"\n\n"})
        return
    if request.include_usage:
        last = shape.envelope([], chunk=True)
        last["usage"] = counted.usage()
        await _send_event(send, last)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _send_event(send: Send, value: dict[str, Any]) -> None:
    body = b"data: " + msgspec.json.encode(value) + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _send_whole(
    send: Send, status: HTTPStatus, body: bytes, *, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    all_headers = [*_JSON, (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": int(status), "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


async def _read_body(receive: Receive) -> bytes:
    parts = []
    total = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise BadRequestError("The client left.")
        parts.append(message.get("body", b""))
        total += len(parts[-1])
        if total > MAX_BODY_BYTES:
            raise BadRequestError(
                "The request body is too large.", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            )
        if not message.get("more_body", False):
            return b"".join(parts)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
