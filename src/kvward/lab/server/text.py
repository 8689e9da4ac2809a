"""From token events to pieces of text, with stop texts that may cross token borders."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from kvward.errors import EngineProtocolError
from kvward.lab.interface import FinishReason, TokenEvent
from kvward.lab.server.shapes import Piece
from kvward.lab.tokenizer import ChatTokenizer


async def iter_pieces(
    events: AsyncIterator[TokenEvent], tokenizer: ChatTokenizer, *, stops: Sequence[str]
) -> AsyncIterator[Piece]:
    """Yield the answer piece by piece; the last one has a finish reason.

    Text that may be the beginning of a stop text is held back until that is decided; a stop text
    itself is never given out.

    Raises:
        EngineProtocolError: the engine ended the request with an error.
    """
    stream = tokenizer.stream()
    hold = max((len(stop) for stop in stops), default=1) - 1
    text = ""
    waiting: list[TokenEvent] = []
    async for event in events:
        if event.finish_reason is FinishReason.ERROR:
            raise EngineProtocolError(event.error or "The engine ended the request.")
        waiting.append(event)
        ended = event.finish_reason is not None
        if event.token_id is not None and event.finish_reason is not FinishReason.STOP:
            text += stream.push(event.token_id)
        if ended:
            text += stream.flush()
        cut = min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)
        if cut is not None:
            yield Piece(text=text[:cut], events=tuple(waiting), finish_reason="stop")
            return
        if ended:
            reason = event.finish_reason.value if event.finish_reason else None
            yield Piece(text=text, events=tuple(waiting), finish_reason=reason)
            return
        ready = len(text) - hold
        if ready > 0:
            yield Piece(text=text[:ready], events=tuple(waiting), finish_reason=None)
            text, waiting = text[ready:], []
