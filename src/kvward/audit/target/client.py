"""The audited stack as its callers see it: one or more addresses, several keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from kvward.audit.exchange import Call, Ending, Reply
from kvward.audit.plan import Route
from kvward.audit.target.detect import Choice, find_preset
from kvward.audit.target.limits import NO_LIMITS, Budget, Limits, Pace, Spend, parse_retry_after
from kvward.audit.target.pages import Page, check_status, fetch_page, model_names
from kvward.audit.target.preset import KeyHeader, Preset, RoutePreset
from kvward.audit.target.reader import ReplyReader
from kvward.audit.target.request import write_identity, write_key, write_request
from kvward.audit.target.scrub import Scrubber, scrub_reply
from kvward.audit.target.side import SideAnswer, SideRequest
from kvward.audit.target.wire import (
    Framing,
    WireError,
    iter_parts,
    parse_unverified_object,
    read_cache_headers,
    read_error,
    read_whole,
    to_name,
)
from kvward.errors import (
    ConfigError,
    TargetError,
    TargetRefusedError,
)

MAX_RETRIES = 4
MAX_WAIT_S = 120.0
_FIRST_PAUSE_S = 1.0
_FOR_NOW = frozenset({429, 503})
_MAX_ERROR_BYTES = 64 << 10
_SHOWN_MODELS = 8
_HINT_HEADER = "x-kvward-conversation-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One try: what was read, and how long the target asked to be left alone, if it refused."""

    reply: Reply
    retry_after_s: float | None


class Target:
    """Sends calls to the addresses of one stack under the keys of several tenants.

    Args:
        url: Base URL, with or without "/v1"; or several, the replicas of one stack.
        keys: API key of each tenant. [secret]
        model: Model name to ask for; None takes the first one that the target lists.
        max_connections: Connections kept open at once.
        preset: What the server is; None asks it.
        stream: Whether to ask for streamed answers. Without, the time to the first token is the
            time to the whole answer.
        limits: What may be spent.
    Raises:
        TargetUnreachableError, TargetRefusedError, TargetError, ConfigError: from `open`.
    Security:
        Keys go into request headers and nowhere else. Texts of errors are scrubbed of them.
        Redirects are not followed, cookies are not kept: both would mix tenants.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        keys: Mapping[str, str],
        *,
        model: str | None,
        max_connections: int,
        timeout_s: float = 120.0,
        preset: Preset | None = None,
        stream: bool = True,
        limits: Limits = NO_LIMITS,
    ) -> None:
        given = [url] if isinstance(url, str) else list(url)
        self.urls = tuple(one.rstrip("/").removesuffix("/v1") for one in given)
        if not self.urls or len(set(self.urls)) < len(self.urls):
            raise ConfigError("A target has at least one address, and each of them once.")
        for tenant, key in keys.items():
            if not key.isascii() or not key.isprintable() or key != key.strip():
                raise ConfigError(
                    f"The key of tenant {tenant} has characters that no header carries.",
                    hint="Check the variable for a line end or a space.",
                )
        self._keys = dict(keys)
        self._scrub = Scrubber(self._keys.values())
        self._model = model
        self._max_connections = max_connections
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=10.0)
        self._choice = None if preset is None else Choice(preset=preset, reason="given")
        self._stream = stream
        self._limits = limits
        self._pace = Pace(limits.max_rps, len(self.urls))
        self._budget: Budget | None = None
        self._session: aiohttp.ClientSession | None = None
        self._listed: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        """Leave out the keys."""
        return f"<Target {' '.join(self.urls)}>"

    @property
    def url(self) -> str:
        """Return the first address."""
        return self.urls[0]

    @property
    def model(self) -> str:
        """Return the model asked for; known after the target was entered."""
        return self._model or ""

    @property
    def choice(self) -> Choice:
        """Return the preset and why it was chosen; known after the target was entered."""
        if self._choice is None:
            raise TargetError("The target is not open.", hint="Use it in `async with`.")
        return self._choice

    @property
    def preset(self) -> Preset:
        """Return the preset."""
        return self.choice.preset

    @property
    def spent(self) -> Spend:
        """Return what the run has cost so far."""
        return self._open_budget.spent

    @property
    def streams(self) -> bool:
        """Tell whether answers are asked for as streams."""
        return self._stream

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=self._max_connections)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"accept-encoding": "identity"},
        )
        try:
            if self._choice is None:
                self._choice = await find_preset(self.url, self._get_to_find)
            self._budget = Budget(self._limits, self._choice.preset)
            for replica in range(len(self.urls)):
                for tenant in self._keys:
                    await self._check_access(replica, tenant)
            self._check_model()
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    def _check_model(self) -> None:
        if self._model is None:
            raise TargetRefusedError(
                "Nothing lists the target's models.", hint="Name the model with --model."
            )

    def check_other_model(self, name: str) -> None:
        """Check that a model can be asked for besides the target's own.

        Raises:
            ConfigError: The target lists models, and this is none of them.
        """
        if self._listed is not None and name not in self._listed and self.preset.name != "http":
            raise ConfigError(
                f"The target does not list a model {name}.", hint=_listing(self._listed)
            )

    async def answers(self) -> bool:
        """Tell whether the target answers every tenant now, at every address."""
        for replica in range(len(self.urls)):
            if not await self.answers_at(replica):
                return False
        return True

    async def answers_at(self, replica: int) -> bool:
        """Tell whether one address of the target answers every tenant now."""
        try:
            for tenant in self._keys:
                await self._check_access(replica, tenant)
        except TargetError:
            return False
        return True

    def route(self, route: Route) -> RoutePreset:
        """Return what is known of a route.

        Raises:
            ConfigError: The preset has no such route.
        """
        found = self.preset.routes.get(route)
        if found is None:
            has = ", ".join(name.value for name in self.preset.routes)
            raise ConfigError(f"{self.preset.title} has no route {route}.", hint=f"It has: {has}.")
        return found

    async def send(self, call: Call) -> Reply:
        """Send one call and read its answer to the end, or go away as the call says.

        Network trouble is data here: it comes back as a `FAILED` reply, never as an exception.
        An answer that says "not now" (429, 503) is waited for and the call is sent again, a few
        times at most; a call that is to be cancelled is not.

        Raises:
            TargetError: The target is not open, or the call's route or replica does not exist.
        """
        route = self.route(call.route)
        if not 0 <= call.replica < len(self.urls):
            raise TargetError(f"There is no replica {call.replica}.")
        waited_s = 0.0
        for num_retries in range(MAX_RETRIES + 1):
            await self._pace.wait(call.replica)
            excess = self._open_budget.take(call)
            if excess is not None:
                return _not_sent(call, f"not sent: {excess}")
            attempt = await self._attempt(call, route)
            reply = replace(
                attempt.reply, replica=call.replica, num_retries=num_retries, waited_s=waited_s
            )
            if reply.status in _FOR_NOW:
                self._open_budget.refund(call)
            else:
                self._open_budget.settle(call, reply)
            if (
                reply.status not in _FOR_NOW
                or call.cancel_after_s is not None
                or num_retries == MAX_RETRIES
            ):
                return reply
            pause = attempt.retry_after_s
            if pause is None:
                pause = _FIRST_PAUSE_S * 2**num_retries
            if pause > MAX_WAIT_S:
                return replace(reply, error=f"{reply.error}, and asked to wait {pause:.0f} s")
            self._pace.pause(call.replica, pause)
            waited_s += pause
        raise AssertionError("the last attempt returns")

    async def ask(
        self, tenant: str, request: SideRequest, *, conversation: str, replica: int = 0
    ) -> SideAnswer:
        """Send one request that is no prompt. Network trouble is data here, as in `send`.

        It is never repeated; pace and budget count it like any other.

        Raises:
            TargetError: The target is not open.
        """
        counted = Call(tenant=tenant, prompt="", max_tokens=0, conversation=None)
        await self._pace.wait(replica)
        excess = self._open_budget.take(counted)
        start_ns = time.perf_counter_ns()
        if excess is not None:
            return SideAnswer(
                status=None, start_ns=start_ns, total_ns=0, error=f"not sent: {excess}"
            )
        self._open_budget.refund(counted)
        headers = write_identity(
            self.preset, model=self.model, key=self._keys[tenant], conversation=conversation
        )
        status, body, error = None, b"", None
        try:
            async with self._open_session.request(
                request.method,
                self.urls[replica] + request.path,
                data=None if request.body is None else msgspec.json.encode(request.body),
                headers={**headers, "content-type": "application/json"},
                allow_redirects=False,
            ) as response:
                status = response.status
                if status == 200:
                    body = await read_whole(response.content.iter_any())
                else:
                    error = await _refusal(response)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, WireError) as exc:
            status, error = None, type(exc).__name__
        return SideAnswer(
            status=status,
            start_ns=start_ns,
            total_ns=time.perf_counter_ns() - start_ns,
            body=body,
            error=None if error is None else self._scrub(error),
        )

    async def _attempt(self, call: Call, route: RoutePreset) -> _Attempt:
        request = write_request(
            self.preset,
            call,
            model=call.model or self.model,
            stream=self._stream,
            key=self._keys[call.tenant],
        )
        reading = ReplyReader(
            time.perf_counter_ns(),
            shape=route.shape,
            counters=self.preset.counters,
            route=call.route,
        )
        retry_after_s = None
        ending = Ending.DONE
        try:
            async with (
                asyncio.timeout(call.cancel_after_s),
                self._open_session.request(
                    request.method,
                    self.urls[call.replica] + request.path,
                    data=msgspec.json.encode(request.body),
                    headers=request.headers,
                    allow_redirects=False,
                ) as response,
            ):
                reading.status = response.status
                reading.scope_hint = to_name(response.headers.get(_HINT_HEADER))
                reading.cache_hit = read_cache_headers(response.headers)
                if response.status != 200:
                    retry_after_s = parse_retry_after(
                        response.headers.get("retry-after"), now=datetime.now(UTC)
                    )
                    reading.error = await _refusal(response)
                elif request.streams and _is_whole(response, route):
                    reading.take_whole(await read_whole(response.content.iter_any()))
                    unasked = "answered without a stream; try --no-stream"
                    reading.error = reading.error or unasked
                elif request.streams:
                    await _read_stream(response, reading, route)
                else:
                    reading.take_whole(await read_whole(response.content.iter_any()))
        except TimeoutError:
            patience_ended = call.cancel_after_s is not None
            ending = Ending.CANCELLED if patience_ended else Ending.FAILED
            reading.error = None if patience_ended else "timeout"
        except (aiohttp.ClientError, OSError) as exc:
            reading.error = type(exc).__name__
        except WireError as exc:
            reading.error = str(exc)
        except ValueError as exc:  # what aiohttp raises for lines and headers beyond its bounds
            reading.error = type(exc).__name__
        if reading.error is not None:
            ending = Ending.FAILED
            reading.error = self._scrub(reading.error)
        reply = scrub_reply(reading.to_reply(ending), self._scrub)
        return _Attempt(reply=reply, retry_after_s=retry_after_s)

    async def _get_to_find(self, path: str) -> Page:
        tenant = next(iter(self._keys))
        key = self._keys[tenant]
        headers = write_key(KeyHeader.BEARER, key) | write_key(KeyHeader.API_KEY, key)
        page = await fetch_page(
            self._open_session, self.url, path, headers | {"anthropic-version": "2023-06-01"}
        )
        if path == "/v1/models":
            check_status(page.status, tenant, path, found={200, 404, 405})
        return page

    async def _check_access(self, replica: int, tenant: str) -> None:
        path = self.preset.models_path
        if path is None:
            return
        identity = write_identity(
            self.preset, model=self.model, key=self._keys[tenant], conversation=None
        )
        page = await fetch_page(self._open_session, self.urls[replica], path, identity)
        check_status(page.status, tenant, path, found={200})
        # A model named by a key would put it into the plan.
        names = [name for name in model_names(page) if not self._scrub.finds_in(name)]
        self._listed = tuple(names)
        if self._model is None:
            self._model = names[0] if names else None
        elif self._model not in names and self.preset.name != "http":
            raise TargetRefusedError(
                f"The target does not list a model {self._model}.", hint=_listing(names)
            )
        if self._model is None:
            raise TargetRefusedError(
                f"The target's {path} does not list a model.",
                hint="The audit needs an OpenAI-compatible server, or a --preset that fits; "
                "check the base URL.",
            )

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise TargetError("The target is not open.", hint="Use it in `async with`.")
        return self._session

    @property
    def _open_budget(self) -> Budget:
        if self._budget is None:
            raise TargetError("The target is not open.", hint="Use it in `async with`.")
        return self._budget


async def _read_stream(
    response: aiohttp.ClientResponse, reading: ReplyReader, route: RoutePreset
) -> None:
    async for part in iter_parts(response.content.iter_any(), route.shape.framing):
        reading.take(part)
        if reading.error is not None:
            return
    if not reading.finished:
        reading.error = "stream ended early"


def _is_whole(response: aiohttp.ClientResponse, route: RoutePreset) -> bool:
    """Tell whether a server that was asked for events has sent one JSON document."""
    return route.shape.framing is Framing.EVENTS and response.content_type == "application/json"


async def _refusal(response: aiohttp.ClientResponse) -> str:
    """Return the status and, where it is short and plain, what the target says about it."""
    try:
        body = await read_whole(response.content.iter_any(), max_bytes=_MAX_ERROR_BYTES)
        said = read_error(parse_unverified_object(body))
    except WireError:
        said = None
    return f"HTTP {response.status}" + (f": {said}" if said else "")


def _not_sent(call: Call, error: str) -> Reply:
    return Reply(
        ending=Ending.FAILED,
        status=None,
        start_ns=time.perf_counter_ns(),
        ttft_ns=None,
        total_ns=0,
        error=error,
        route=call.route,
        replica=call.replica,
    )


def _listing(names: Sequence[str]) -> str:
    return f"It lists: {', '.join(names[:_SHOWN_MODELS]) or 'none'}"
