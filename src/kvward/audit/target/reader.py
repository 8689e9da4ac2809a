"""Reads one answer of one route: part by part, or as a whole."""

from __future__ import annotations

from kvward.audit.exchange import Ending, Reply
from kvward.audit.plan import Route
from kvward.audit.target.answer import Answer, Counters
from kvward.audit.target.presets import OPENAI_COUNTERS
from kvward.audit.target.shapes import Completions, Shape
from kvward.audit.target.wire import WireError, parse_unverified_object

_COMPLETIONS = Completions()


class ReplyReader(Answer):
    """An answer while it is read. What is not as the protocol says makes it a failed one.

    Args:
        start_ns: When the request was sent, on the clock of `time.perf_counter_ns`.
        shape, counters: Of the route that was asked; OpenAI's completions by default.
    """

    def __init__(
        self,
        start_ns: int,
        *,
        shape: Shape = _COMPLETIONS,
        counters: Counters = OPENAI_COUNTERS,
        route: Route = Route.COMPLETIONS,
    ) -> None:
        super().__init__(start_ns, counters)
        self._shape = shape
        self._route = route

    def take(self, data: bytes) -> None:
        """Take the data of one part of a stream. [untrusted]"""
        if data == self._shape.end_mark:
            self.finished = True
            return
        if not data:
            return
        try:
            self._shape.read_event(parse_unverified_object(data), self)
        except WireError as exc:
            self.error = str(exc)

    def take_whole(self, body: bytes) -> None:
        """Take the body of an answer that does not stream. [untrusted]"""
        try:
            self._shape.read_body(parse_unverified_object(body), self)
        except WireError as exc:
            self.error = str(exc)
        self.finished = True

    def to_reply(self, ending: Ending, *, route: Route | None = None) -> Reply:
        """Return what was read."""
        return super().to_reply(ending, route=self._route if route is None else route)
