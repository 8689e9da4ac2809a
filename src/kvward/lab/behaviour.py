"""What the engine does at the few places where engines have been seen to go wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Choices of the scheduler. The sound engine makes all of them; a defect turns one off.

    Attributes:
        scope_in_key: The request's scope enters the hash of its blocks.
        pin_hits: A block found in the index is held by the request from then on.
        publish_when_written: A block becomes findable after all its layers are written.
    """

    scope_in_key: bool
    pin_hits: bool
    publish_when_written: bool


SOUND = Behaviour(scope_in_key=True, pin_hits=True, publish_when_written=True)
