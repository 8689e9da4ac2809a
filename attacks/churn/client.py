"""Sends orders, stays or goes away as they say, and returns what was seen. Never raises for it."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from attacks.churn.plan import Leave, Moment, Order
from kvward.audit.exchange import TOP_LOGPROBS, Ending, Reply
from kvward.audit.target import ReplyReader

TIMED_OUT = "timeout"
_FIRST_GUESS_TTFT_S = 0.02
# Servers close idle connections after five seconds; a request that meets the close would look
# like a failure.
_KEEP_ALIVE_S = 2.0


class ChurnClient:
    """All clients' connections to one server.

    Args:
        keys: API key of each tenant. [secret]
        timeout_s: A request that takes longer hangs.
    """

    def __init__(self, url: str, keys: Mapping[str, str], *, model: str, timeout_s: float) -> None:
        self._url = f"{url}/v1/completions"
        self._keys = dict(keys)
        self._model = model
        self._timeout_s = timeout_s
        self._recent_ttft_s: deque[float] = deque([_FIRST_GUESS_TTFT_S], maxlen=64)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        trace = aiohttp.TraceConfig()
        trace.on_request_chunk_sent.append(_tell_that_it_was_sent)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
            trace_configs=[trace],
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def send(self, order: Order) -> Reply:
        """Send one order. Network trouble comes back as a `FAILED` reply."""
        await asyncio.sleep(order.wait * self._usual_ttft_s)
        reader = ReplyReader(time.perf_counter_ns())
        sent = asyncio.Event()
        exchange = asyncio.create_task(self._exchange(order, reader, sent))
        leaving = asyncio.create_task(self._go_away(order.leave, sent))
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.wait({exchange, leaving}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            reader.error = TIMED_OUT
        finally:
            exchange.cancel()
            leaving.cancel()
            await asyncio.gather(exchange, leaving, return_exceptions=True)
        ending = Ending.CANCELLED if exchange.cancelled() else exchange.result()
        reply = reader.to_reply(Ending.FAILED if reader.error is not None else ending)
        if order.streams and ending is Ending.DONE and reply.ttft_ns is not None:
            self._recent_ttft_s.append(reply.ttft_ns / 1e9)
        return reply

    async def _exchange(self, order: Order, reader: ReplyReader, sent: asyncio.Event) -> Ending:
        try:
            async with self._session.post(
                self._url,
                data=msgspec.json.encode(self._body(order)),
                headers={
                    "authorization": f"Bearer {self._keys[order.session.tenant]}",
                    "content-type": "application/json",
                    "x-kvward-conversation": order.session.conversation,
                },
                trace_request_ctx=sent,
            ) as response:
                reader.status = response.status
                if response.status != 200:
                    reader.error = f"HTTP {response.status}"
                elif order.streams:
                    return await _read_stream(response, reader, order.leave)
                else:
                    reader.take_whole(await response.read())
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            reader.error = type(exc).__name__
        return Ending.DONE

    async def _go_away(self, leave: Leave | None, sent: asyncio.Event) -> None:
        """Return when it is time to go away before the first token; else wait for ever."""
        if leave is None or leave.moment is Moment.MID_STREAM:
            await asyncio.Event().wait()
            return
        await sent.wait()
        if leave.moment is Moment.PREFILL:
            await asyncio.sleep(leave.patience * self._usual_ttft_s)

    @property
    def _usual_ttft_s(self) -> float:
        return statistics.median(self._recent_ttft_s)

    def _body(self, order: Order) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": order.prompt.text,
            "max_tokens": order.max_tokens,
            "temperature": 0,
            "logprobs": TOP_LOGPROBS,
            **(
                {"stream": True, "stream_options": {"include_usage": True}}
                if order.streams
                else {"stream": False}
            ),
        }


async def _read_stream(
    response: aiohttp.ClientResponse, reader: ReplyReader, leave: Leave | None
) -> Ending:
    parts_left = leave.parts if leave is not None and leave.moment is Moment.MID_STREAM else None
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        reader.take(line[5:].strip())
        if parts_left is not None and not reader.finished:
            parts_left -= 1
            if parts_left <= 0:
                response.close()  # the connection, with whatever is still on its way
                return Ending.CANCELLED
    if not reader.finished:
        reader.error = reader.error or "stream ended early"
    return Ending.DONE


async def _tell_that_it_was_sent(
    session: aiohttp.ClientSession,  # noqa: ARG001 - what aiohttp calls it with
    context: Any,
    parameters: aiohttp.TraceRequestChunkSentParams,  # noqa: ARG001
) -> None:
    context.trace_request_ctx.set()
