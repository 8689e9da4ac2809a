"""Names that could be made without a key: by every public function, or from what is public.

A match of any 8 bytes anywhere in what a tenant stored counts, so that names that are cut short,
or hidden in another field, are found too.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from attacks.names.world import LAYOUT, MANIFEST_DIGEST, Guesses, Holding, View
from kvward.canonical import encode
from kvward.scope.derive import Label

Scores = npt.NDArray[np.float64]
_WINDOW = 8
_PART = LAYOUT.parts[0].to_fields()


def _mac(key: bytes) -> Callable[[bytes], bytes]:
    return lambda chain: hmac.digest(key, chain, "sha256")


@functools.lru_cache(maxsize=1 << 16)
def _message(chain: bytes) -> bytes:
    return encode(Label.BLOCK_NAME, chain, *_PART)


def _named(key: bytes) -> Callable[[bytes], bytes]:
    return lambda chain: hmac.digest(key, _message(chain), "sha256")


PUBLIC: Mapping[str, Callable[[bytes], bytes]] = {
    "the chain hash": lambda chain: chain,
    "reversed": lambda chain: chain[::-1],
    "inverted": lambda chain: bytes(byte ^ 0xFF for byte in chain),
    "sha256": lambda chain: hashlib.sha256(chain).digest(),
    "sha256 twice": lambda chain: hashlib.sha256(hashlib.sha256(chain).digest()).digest(),
    "sha256 of the hexadecimal": lambda chain: hashlib.sha256(chain.hex().encode()).digest(),
    "sha256 of the name's encoding": lambda chain: hashlib.sha256(_message(chain)).digest(),
    "sha512": lambda chain: hashlib.sha512(chain).digest(),
    "sha3": lambda chain: hashlib.sha3_256(chain).digest(),
    "blake2b": lambda chain: hashlib.blake2b(chain).digest(),
    "blake2s": lambda chain: hashlib.blake2s(chain).digest(),
    "sha1": lambda chain: hashlib.sha1(chain).digest(),
    "md5": lambda chain: hashlib.md5(chain).digest(),
    "HMAC, empty key": _mac(b""),
    "HMAC, zero key": _mac(bytes(32)),
    "HMAC, manifest as key": _mac(MANIFEST_DIGEST),
    "HMAC, layout as key": _mac(LAYOUT.digest),
    "HMAC, deployment as key": _mac(b"d"),
    "block name, zero key": _named(bytes(32)),
    "block name, key of ones": _named(b"\xff" * 32),
    "block name, manifest as key": _named(MANIFEST_DIGEST),
    "block name, layout as key": _named(LAYOUT.digest),
    "block name, deployment as key": _named(hashlib.sha256(b"d").digest()),
}


class PublicNames:
    """Everything that public functions make of the guesses, made once."""

    def __init__(self, guesses: Guesses) -> None:
        self._num_guesses = len(guesses)
        self._found: dict[str, dict[bytes, int]] = {
            label: {
                make(chain.tobytes())[:_WINDOW]: guess
                for guess, chains in enumerate(guesses.chains)
                for chain in chains
            }
            for label, make in PUBLIC.items()
        }

    def scores(self, view: View) -> dict[str, Scores]:
        """Return for each function how often each guess is found among what is stored."""
        scores = {}
        seen = list(iter_windows(view.one))
        for label, found in self._found.items():
            score = np.zeros(self._num_guesses)
            for window in seen:
                if (guess := found.get(window)) is not None:
                    score[guess] += 1
            scores[label] = score
        return scores


class KeyedNames:
    """The guesses as they would be named under a key that can be seen."""

    def __init__(self, guesses: Guesses) -> None:
        self._messages = [_message(chains[-1].tobytes()) for chains in guesses.chains]

    def scores(self, view: View, label: str) -> Scores:
        """Return which guesses have the name of an entry under a visible key."""
        key = visible_keys(view.one)[label]
        names = {name.name for name in view.one.names}
        return np.array(
            [hmac.digest(key, message, "sha256") in names for message in self._messages],
            np.float64,
        )


def visible_keys(holding: Holding) -> dict[str, bytes]:
    """Return everything of a tenant that can be seen and could have been taken as a key."""
    name = holding.names[0]
    key_id, nonce = holding.sealed[0][8:16], holding.sealed[0][40:64]
    return {
        "token": holding.token.encode(),
        "sha256 of the token": hashlib.sha256(holding.token.encode()).digest(),
        "owner tag": holding.owner_tag.encode(),
        "scope id": holding.owner.scope_id,
        "tenant id": holding.owner.tenant_id,
        "tenant bucket": name.tenant,
        "scope bucket": name.scope,
        "key id": key_id,
        "nonce": nonce,
    }


def iter_windows(holding: Holding) -> Iterator[bytes]:
    """Yield every 8 bytes of names, key id, nonce and tag, and the first of body and buckets."""
    values: defaultdict[str, list[bytes]] = defaultdict(list)
    for label in ("name", "tenant", "scope", "key id", "nonce", "tag", "body"):
        values[label] += [row.tobytes() for row in holding.field(label)]
    for label, rows in values.items():
        last = {"body": 1, "tenant": 1, "scope": 1}.get(label)
        for row in rows:
            for offset in range(last or len(row) - _WINDOW + 1):
                yield row[offset : offset + _WINDOW]
