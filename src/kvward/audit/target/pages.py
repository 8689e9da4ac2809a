"""Pages of a server that are no answers to prompts: what it lists, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from kvward.audit.target.wire import WireError, parse_unverified_object, read_whole, to_name
from kvward.errors import TargetRefusedError, TargetUnreachableError

_MAX_PAGE_BYTES = 8 << 20
_NO_SUCH_SERVER = (
    "The audit needs an OpenAI-compatible server, or a --preset that fits; check the base URL."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer to a GET: status, the Server header, and the body. [untrusted]"""

    status: int
    server: str
    body: bytes

    def to_object(self) -> dict[str, Any]:
        """Return the body's object; an empty one for anything else."""
        if self.status != 200:
            return {}
        try:
            return parse_unverified_object(self.body)
        except WireError:
            return {}


async def fetch_page(
    session: aiohttp.ClientSession, url: str, path: str, headers: Mapping[str, str]
) -> Page:
    """Return a page. [untrusted]

    Args:
        headers: With a tenant's key. [secret]
    Raises:
        TargetUnreachableError: Nothing answers there, or it is no URL.
        TargetRefusedError: The answer is larger than any page.
    """
    try:
        async with session.get(url + path, headers=headers, allow_redirects=False) as response:
            body = await read_whole(response.content.iter_any(), max_bytes=_MAX_PAGE_BYTES)
            server = response.headers.get("server", "")
            return Page(status=response.status, server=server, body=body)
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        if isinstance(exc, aiohttp.InvalidURL):
            raise _no_url(url) from exc
        raise TargetUnreachableError(
            f"Nothing that speaks HTTP answers at {url} ({type(exc).__name__}).",
            hint="Check the address, and that the server has finished starting.",
        ) from exc
    except WireError as exc:
        raise TargetRefusedError(f"{url}{path}: {exc}.") from exc
    except ValueError as exc:
        raise _no_url(url) from exc


def check_status(status: int, tenant: str, path: str, *, found: set[int]) -> None:
    """Check that a tenant was let in.

    Args:
        found: What the status may be.
    Raises:
        TargetRefusedError: It is another.
    """
    if status in {401, 403}:
        raise TargetRefusedError(
            f"The target refuses the key of tenant {tenant} (HTTP {status}).",
            hint="Check the key after NAME= in --tenant.",
        )
    if status not in found:
        raise TargetRefusedError(
            f"The target answers {path} with HTTP {status}.", hint=_NO_SUCH_SERVER
        )


def model_names(page: Page) -> list[str]:
    """Return the names of the models that a page lists. [untrusted]"""
    listed = page.to_object().get("data")
    entries = listed if isinstance(listed, list) else []
    names = [to_name(entry.get("id")) for entry in entries if isinstance(entry, dict)]
    return [name for name in names if name]


def _no_url(url: str) -> TargetUnreachableError:
    return TargetUnreachableError(
        f"{url} is not a URL that can be asked.", hint="Write it as http://HOST:PORT"
    )
