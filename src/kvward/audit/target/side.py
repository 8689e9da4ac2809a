"""What a server may be asked beside prompts: lists of what it holds, and states that it saves.

Only requests that a server's own documents name are in a preset. They are data here; `client` sends
them, and whoever asks reads the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvward.audit.plan import Route
from kvward.audit.target.filling import fill


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRequest:
    """A request that is no prompt.

    Attributes:
        path: Under the base URL; placeholders stand inside it and inside the body.
        body: Sent as JSON; None for none.
    """

    path: str
    method: str = "GET"
    body: Mapping[str, Any] | None = None

    def filled(self, values: Mapping[str, Any]) -> SideRequest:
        """Return the request with its placeholders filled."""
        body = None if self.body is None else fill(self.body, values)
        return replace(self, path=str(fill(self.path, values)), body=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A side door: a request whose answer lists cached state or requests in flight.

    Attributes:
        name: Names it in plans and histories.
    """

    name: str
    request: SideRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """How the state of a slot is saved and put back.

    Attributes:
        pin: Per route what a prompt's body says so that its state is in the slot that is saved.
        save: Fills `{salt}`, the forged one of the pair, and `{name}`, one for the whole audit.
        restore: Fills `{state}` as well.
        state_path: Where the answer to saving has the state; None where the server keeps it under
            the name.
    """

    pin: Mapping[Route, Mapping[str, Any]]
    save: SideRequest
    restore: SideRequest
    state_path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideAnswer:
    """What came back. Network trouble is data: then the status is None.

    Attributes:
        body: At most 64 MiB; empty unless the status is 200. [untrusted]
        error: Why there is no answer, in our words.
    """

    status: int | None
    start_ns: int
    total_ns: int
    body: bytes = field(default=b"", repr=False)
    error: str | None = None

    @property
    def is_refusal(self) -> bool:
        """Tell whether the target says that it does no such thing for this caller."""
        status = self.status or 0
        return status == 501 or (400 <= status < 500 and status != 429)
