"""Which route a request takes, if any: by who asks, and by what the policy names."""

from __future__ import annotations

from http import HTTPStatus

from kvward.gateway.identity import Principal
from kvward.gateway.policy import Policy
from kvward.gateway.table import ROUTES, SUMMARY_PATH, Kind, Route
from kvward.gateway.warm import WARM_PATH

_OPERATORS = frozenset({Kind.OPERATOR, Kind.RELOAD})
_SUMMARY = Route(method="GET", path=SUMMARY_PATH, kind=Kind.OPERATOR)
_WARM = Route(method="POST", path=WARM_PATH, kind=Kind.OPERATOR)
_BY_PATH: dict[str, list[Route]] = {}
for _route in (*ROUTES, _SUMMARY, _WARM):
    # Only what may pass can be found. A path with a parameter would be such a path's own text.
    if _route.kind is not Kind.REFUSED:
        _BY_PATH.setdefault(_route.path, []).append(_route)


def find_open_route(method: str, raw_path: bytes) -> Route | None:
    """Return the route of a request that needs no key, if it is one."""
    for route in _at(raw_path):
        if route.kind is Kind.OPEN and route.method == method:
            return route
    return None


def find_route(
    method: str, raw_path: bytes, *, principal: Principal, policy: Policy
) -> Route | HTTPStatus:
    """Return the route of a request, or the status of its refusal.

    What is not there, what the policy does not name and what is not for this principal look alike.

    Args:
        raw_path: As it came, not decoded: any escape or second spelling is another path, and
            another path is refused. [untrusted]
    """
    visible = [route for route in _at(raw_path) if _may(principal, route, policy)]
    if not visible:
        return HTTPStatus.NOT_FOUND
    for route in visible:
        if route.method == method:
            return route
    return HTTPStatus.METHOD_NOT_ALLOWED


def _at(raw_path: bytes) -> list[Route]:
    try:
        return _BY_PATH.get(raw_path.decode("ascii"), [])
    except UnicodeDecodeError:
        return []


def _may(principal: Principal, route: Route, policy: Policy) -> bool:
    if route.kind in _OPERATORS:
        return principal.is_operator
    if route.kind is Kind.SCOPED:
        # A request of an operator's has no tenant, so no scope; public prefixes have their own way.
        return not principal.is_operator and route.level(policy.levels) is not None
    return True
