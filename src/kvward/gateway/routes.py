"""The routes that the gateway knows. Everything else is refused, so a new one is not a hole."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from kvward.gateway.policy import Levels
from kvward.terms import SharingLevel

HEALTH_PATH = "/healthz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route: its path here and upstream, and the name of its level in the policy.

    A route without a level reads or makes no cached state.
    """

    method: str
    path: str
    level_name: str | None

    def level(self, levels: Levels) -> SharingLevel | None:
        """Return the level that the policy names for this route."""
        if self.level_name is None:
            return None
        level: SharingLevel = getattr(levels, self.level_name)
        return level


_ROUTES = (
    Route(method="POST", path="/v1/chat/completions", level_name="chat_completions"),
    Route(method="POST", path="/v1/completions", level_name="completions"),
    Route(method="GET", path="/v1/models", level_name=None),
)
_BY_PATH = {route.path: route for route in _ROUTES}


def find_route(method: str, raw_path: bytes) -> Route | HTTPStatus:
    """Return the route of a request, or the status of its refusal.

    Args:
        raw_path: As it came, not decoded: any escape or second spelling is another path, and
            another path is refused. [untrusted]
    """
    try:
        route = _BY_PATH.get(raw_path.decode("ascii"))
    except UnicodeDecodeError:
        route = None
    if route is None:
        return HTTPStatus.NOT_FOUND
    return route if method == route.method else HTTPStatus.METHOD_NOT_ALLOWED
