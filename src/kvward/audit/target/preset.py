"""What is known of a server: its routes, counters, logprobs, and how a scope is forged there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvward.audit.exchange import TOP_LOGPROBS, ForgedScope
from kvward.audit.plan import Route
from kvward.audit.target.answer import Counters
from kvward.audit.target.filling import fill
from kvward.audit.target.images import AddImage
from kvward.audit.target.shapes import (
    Shape,
)
from kvward.audit.target.side import Door, SavedState
from kvward.errors import ConfigError

_GENERIC_FORGED_HEADERS = {
    "x-session-id": "{session}",
    "x-tenant-id": "{tenant}",
    "x-kvward-tenant": "{tenant}",
    "x-cache-salt": "{salt}",
}
"""Headers by which some gateway or other lets a caller choose; servers ignore what they do not
know."""


class KeyHeader(StrEnum):
    """In which header a tenant's key is sent."""

    BEARER = "authorization"
    API_KEY = "x-api-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Where a row of the table comes from.

    Attributes:
        source: Document, source file or pull request.
        seen: Its version, commit or date.
    """

    source: str
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePreset:
    """One route of a server.

    Attributes:
        path: Under the base URL.
        max_logprobs: Most alternatives for a token that the route gives; 0 without logprobs.
        verbatim: Whether a prompt reaches the model as it is, without a template around it.
        streams: Whether its answers are streamed whatever the auditor prefers; None to choose.
        add_image: Returns a body with the call's picture in it; None where none can be sent.
    """

    path: str
    shape: Shape
    max_logprobs: int = 0
    method: str = "POST"
    verbatim: bool = False
    streams: bool | None = None
    add_image: AddImage | None = None

    @property
    def gives_content(self) -> bool:
        """Tell whether canaries can be read from its answers."""
        return self.max_logprobs >= TOP_LOGPROBS


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A server that can be audited.

    Attributes:
        models_path: What lists models, asked once with each key; None where nothing does.
        headers: Sent with every request; `{conversation}` is filled in.
        forged_body: Per route what a forged scope adds to the body; for routes not named, nothing.
        keeps_connections: Whether a connection can be used again after an answer was streamed.
        salt_field: Of a body, for the scope of its cached state, on every route; None without one.
        min_prompt_tokens: Shorter prompts are not cached at all; 1 where there is no such limit.
        tokens_per_word: At most, of our code words, for estimates of cost. 1 on the canary model.
        write_price_ratio: What a token costs that is written to the cache, against one that is
            read normally.
        doors: What lists cached state or requests in flight; empty where nothing is known to.
        saved_state: How the state of a slot is saved and put back; None where nothing is known to.
        counter_hint: How the server is made to report reuse, in a few words; empty where it always
            does or never.
        unverified: What could not be looked up, in a sentence; empty when nothing is open.
    """

    name: str
    title: str
    routes: Mapping[Route, RoutePreset]
    counters: Counters
    key_header: KeyHeader | None = KeyHeader.BEARER
    models_path: str | None = "/v1/models"
    headers: Mapping[str, str] = field(default_factory=dict)
    forged_body: Mapping[Route, Mapping[str, Any]] = field(default_factory=dict)
    forged_headers: Mapping[str, str] = field(default_factory=lambda: _GENERIC_FORGED_HEADERS)
    keeps_connections: bool = True
    salt_field: str | None = None
    min_prompt_tokens: int = 1
    tokens_per_word: float = 3.0
    write_price_ratio: float = 1.0
    doors: tuple[Door, ...] = ()
    saved_state: SavedState | None = None
    counter_hint: str = ""
    facts: tuple[Fact, ...] = ()
    unverified: str = ""

    def forged_fields(self, route: Route, forged: ForgedScope) -> dict[str, Any]:
        """Return the fields of a body that claim a scope."""
        values = {"salt": forged.salt, "session": forged.session, "tenant": forged.tenant}
        return {k: fill(v, values) for k, v in self.forged_body.get(route, {}).items()}

    def salt_fields(self, route: Route, salt: str) -> dict[str, Any]:
        """Return the field of a body that says under which salt a request runs.

        Raises:
            ConfigError: None is known.
        """
        if self.salt_field is None:
            raise ConfigError(
                f"No field is known that salts a request to {route} of {self.title}.",
                hint="Leave --salt-tenants out, and have the stack tell tenants by their keys.",
            )
        return {self.salt_field: salt}

    def forged_header_values(self, forged: ForgedScope) -> dict[str, str]:
        """Return the headers that claim a scope."""
        values = {"salt": forged.salt, "session": forged.session, "tenant": forged.tenant}
        return {k: str(fill(v, values)) for k, v in self.forged_headers.items()}
