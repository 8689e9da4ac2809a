"""What the administration server of a Mooncake master lists: keys and sizes."""

from __future__ import annotations

import http.client
import urllib.parse
from collections.abc import Callable, Iterator

import msgspec

from kvward.errors import BackendDataError, BackendUnavailableError

_ASKED_AT_ONCE = 64


class _Replica(msgspec.Struct):
    num_bytes: int = msgspec.field(name="size_")


class _Listed(msgspec.Struct):
    values: list[_Replica] | None = None


class _Listing(msgspec.Struct):
    data: dict[str, _Listed]


class Administration:
    """The master's HTTP server of that name."""

    def __init__(self, host: str, port: int, *, timeout_s: float) -> None:
        self._address = (host, port)
        self._timeout_s = timeout_s

    def iter_sizes(self, is_wanted: Callable[[str], object]) -> Iterator[tuple[str, int]]:
        """Yield each wanted key with the bytes of its value; keys that vanish are left out.

        Raises:
            BackendUnavailableError: The server does not answer.
            BackendDataError: It answers something else.
        """
        keys = [key for key in self._ask("/get_all_keys").split() if is_wanted(key)]
        for at in range(0, len(keys), _ASKED_AT_ONCE):
            asked = keys[at : at + _ASKED_AT_ONCE]
            query = urllib.parse.urlencode({"keys": ",".join(asked)}, safe="/,")
            answer = self._ask(f"/batch_query_keys?{query}")
            try:
                listing = msgspec.json.decode(answer, type=_Listing)
            except msgspec.DecodeError as exc:
                raise BackendDataError("Mooncake's list of entries is not understood.") from exc
            for key in asked:
                listed = listing.data.get(key)
                if listed is not None and listed.values:
                    yield key, listed.values[0].num_bytes

    def _ask(self, path: str) -> str:
        connection = http.client.HTTPConnection(*self._address, timeout=self._timeout_s)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as exc:
            raise BackendUnavailableError("Mooncake's master does not answer.") from exc
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise BackendUnavailableError(f"Mooncake's master answered {response.status}.")
        return answer.decode("utf-8", errors="replace")
