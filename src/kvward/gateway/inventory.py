"""What a running application's routes are, beside what the table says of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvward.gateway.policy import Policy
from kvward.gateway.table import ROUTES, Kind, Route

_WEBSOCKET = "WEBSOCKET"
_MOUNT = "MOUNT"
_BY_PLACE = {(route.method, route.path): route for route in ROUTES}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Found:
    """A route of a running application. HEAD comes with GET and OPTIONS says nothing: neither
    passes, neither is listed.

    Attributes:
        method: Of HTTP, or "WEBSOCKET", "MOUNT" for an application under a path that does not
            tell its routes, "ANY", or "UNREADABLE".
    """

    path: str
    method: str

    @property
    def row(self) -> Route | None:
        """Return the row of the table; None when the route is unknown, and so never passes."""
        return _BY_PLACE.get((self.method, self.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The routes of an application; None when it does not show them, as one elsewhere does not."""

    found: tuple[Found, ...] | None

    @property
    def unknown(self) -> list[Found]:
        """Return the routes that are refused because nobody has looked at them."""
        return [found for found in self.found or () if found.row is None]

    def to_summary(self, policy: Policy) -> dict[str, object]:
        """Return what is done with each route, for operators."""
        return {
            "seen": self.found is not None,
            "routes": [_row(route, policy) for route in ROUTES if self._has(route)],
            "unknown": [{"method": f.method, "path": f.path} for f in self.unknown],
        }

    def _has(self, route: Route) -> bool:
        return self.found is None or Found(path=route.path, method=route.method) in self.found


NOT_SEEN = Inventory(found=None)


def take_inventory(application: object) -> Inventory:
    """List the routes of a Starlette application, mounted ones included.

    Args:
        application: From `asgi_scope["app"]`; None, or something without routes, is not seen.
    """
    routes = getattr(application, "routes", None)
    if routes is None:
        return NOT_SEEN
    return Inventory(found=tuple(sorted(set(_walk(routes, "")))))


def _walk(routes: Iterable[Any], above: str) -> Iterator[Found]:
    # Looked at by attributes, because the gateway does not need the framework otherwise.
    for route in routes:
        path = getattr(route, "path", None)
        if not isinstance(path, str):
            yield Found(method="UNREADABLE", path=f"{above} {type(route).__name__}".strip())
        elif hasattr(route, "methods"):
            methods = route.methods if route.methods is not None else {"ANY"}
            for method in set(methods) - {"HEAD", "OPTIONS"}:
                yield Found(method=method, path=above + path)
        elif inner := getattr(route, "routes", None):
            yield from _walk(inner, above + path)
        else:
            # A mounted application has a list of routes, if only an empty one; a WebSocket none.
            method = _MOUNT if hasattr(route, "routes") else _WEBSOCKET
            yield Found(method=method, path=above + path)


def _row(route: Route, policy: Policy) -> dict[str, object]:
    level = route.level(policy.levels)
    unnamed = route.kind is Kind.SCOPED and level is None
    return {
        "method": route.method,
        "path": route.path,
        "kind": (Kind.REFUSED if unnamed else route.kind).value,
        "level": None if level is None else level.value,
    }
