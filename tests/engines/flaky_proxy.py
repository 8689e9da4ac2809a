"""A TCP proxy on loopback that can die, hang, or answer nonsense: stands before a store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from enum import StrEnum
from types import TracebackType
from typing import Self

_CHUNK = 64 << 10


class Mood(StrEnum):
    SOUND = "sound"
    DEAD = "dead"
    SLOW = "slow"
    GARBAGE = "garbage"


class FlakyProxy:
    """Passes connections on to a port, in the mood that `mood` says at the moment."""

    def __init__(self, target_port: int, *, slow_s: float = 2.0) -> None:
        self._target = target_port
        self._slow_s = slow_s
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self.mood = Mood.SOUND
        self.port = 0

    def __enter__(self) -> Self:
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._drop_all)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        pending = asyncio.all_tasks(self._loop)
        for task in pending:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self._loop.close()

    def become(self, mood: Mood) -> None:
        """Change the mood; whoever was connected in another one has to connect again."""
        self.mood = mood
        self._loop.call_soon_threadsafe(self._drop_all)

    def _drop_all(self) -> None:
        for writer in list(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mood is Mood.DEAD:
            writer.close()
            return
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(
                self._pump(reader, far_writer, spoil=False),
                self._pump(far_reader, writer, spoil=True),
            )
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, spoil: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if spoil and self.mood is Mood.SLOW:
                    await asyncio.sleep(self._slow_s)
                if spoil and self.mood is Mood.GARBAGE:
                    data = os.urandom(len(data))
                writer.write(data)
                await writer.drain()
        writer.close()
