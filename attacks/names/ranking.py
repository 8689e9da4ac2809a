"""Strategies that rank the guesses: which of 10,000 prompts is cached?

Each gives every guess a score; a high one says that this is it. Names and bytes are compared with
guesses bit by bit, byte by byte and against each other, so that keys that cancel out are found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from attacks.names.candidates import Scores
from attacks.names.world import Bytes, View

_LAST = -1
Strategy = Callable[[View], Scores]


def likeness(seen: Bytes, guessed: Bytes) -> Scores:
    """Return how many bits agree, for one row against each of many."""
    width = min(seen.shape[-1], guessed.shape[-1])
    differing = np.bitwise_count(guessed[:, :width] ^ seen[:width])
    agreeing: Scores = -differing.sum(axis=1, dtype=np.int64).astype(np.float64)
    return agreeing


def _chain_like(field: str) -> Strategy:
    return lambda view: likeness(view.one.field(field)[_LAST], view.guesses.chains[:, _LAST])


def _prefix(view: View) -> Scores:
    """Return how many leading bits of the name agree with the chain hash."""
    differing = view.guesses.chains[:, _LAST, :8] ^ view.one.field("name")[_LAST, :8]
    return -np.ascontiguousarray(differing).view(">u8")[:, 0].astype(np.float64)


def _numeric(view: View) -> Scores:
    """Return how near the name is to the chain hash as a number."""
    name = np.ascontiguousarray(view.one.field("name")[_LAST, :8]).view(">u8")[0]
    chains = np.ascontiguousarray(view.guesses.chains[:, _LAST, :8]).view(">u8")[:, 0]
    return -np.abs(chains.astype(np.float64) - float(name))


def _same_bytes(view: View) -> Scores:
    """Return how often byte values of the name occur in the chain hash, anywhere."""
    here = np.bincount(view.one.field("name")[_LAST], minlength=256) > 0
    found: Scores = here[view.guesses.chains[:, _LAST]].sum(axis=1).astype(np.float64)
    return found


def _differences(view: View) -> Scores:
    """Compare differences of names with differences of hashes: a mask would cancel out."""
    names, chains = view.one.field("name"), view.guesses.chains
    return likeness(names[0] ^ names[1], chains[:, 0] ^ chains[:, 1])


def _sums(view: View) -> Scores:
    """Compare differences modulo 256 likewise: an addend would cancel out."""
    names, chains = view.one.field("name"), view.guesses.chains
    return likeness(names[0] - names[1], chains[:, 0] - chains[:, 1])


def _order(view: View) -> Scores:
    """Compare the order of names with that of hashes: a monotone naming would keep it."""
    names = np.argsort([name.tobytes() for name in view.one.field("name")])
    firsts = np.ascontiguousarray(view.guesses.chains[:, :, :8]).view(">u8")[:, :, 0]
    same: Scores = (np.argsort(firsts, axis=1) == names).all(axis=1).astype(np.float64)
    return same


def _plain_like(view: View) -> Scores:
    """Compare ciphertext with the guess's plaintext."""
    return likeness(view.one.field("body")[_LAST], view.guesses.plain[:, _LAST])


def _histogram(view: View) -> Scores:
    """Count byte values of the ciphertext in the guess's plaintext."""
    counts = np.bincount(view.one.field("body").ravel(), minlength=256)
    found: Scores = counts[view.guesses.plain[:, _LAST]].sum(axis=1).astype(np.float64)
    return found


def _key_stream_again(view: View) -> Scores:
    """Compare the key streams of two blocks under each guess: the right one shows a reuse."""
    body, plain = view.one.field("body"), view.guesses.plain
    return likeness(body[0] ^ body[1], plain[:, 0] ^ plain[:, 1])


def _key_stream_between(view: View) -> Scores:
    """Compare the key streams of both tenants under each guess."""
    body, plain = view.one.field("body")[0] ^ view.other.field("body")[1], view.guesses.plain
    return likeness(body, plain[:, 0] ^ plain[:, 1])


def _key_stream_is_constant(view: View) -> Scores:
    """Look at how uneven the bytes of the key stream are under each guess."""
    stream = view.one.field("body")[_LAST] ^ view.guesses.plain[:, _LAST]
    unevenness: Scores = np.abs(stream.astype(np.float64).mean(axis=1) - 127.5)
    return unevenness


def _key_stream_like_name(view: View) -> Scores:
    """Compare the key stream under each guess with the entry's name."""
    stream = view.one.field("body")[_LAST] ^ view.guesses.plain[:, _LAST]
    return likeness(view.one.field("name")[_LAST], stream)


RANKING: Mapping[str, Strategy] = {
    "bits of the name, chain hash": _chain_like("name"),
    "bits of the scope bucket, chain hash": _chain_like("scope"),
    "bits of the nonce, chain hash": _chain_like("nonce"),
    "bits of the tag, chain hash": _chain_like("tag"),
    "bits of the key id, chain hash": _chain_like("key id"),
    "bits of the body, chain hash": _chain_like("body"),
    "prefix of the name": _prefix,
    "name as a number": _numeric,
    "byte values of the name": _same_bytes,
    "differences of names": _differences,
    "differences of names, modulo 256": _sums,
    "order of names": _order,
    "bits of the body, plaintext": _plain_like,
    "byte values of the body, plaintext": _histogram,
    "key stream used again": _key_stream_again,
    "key stream of both tenants": _key_stream_between,
    "key stream uneven": _key_stream_is_constant,
    "key stream, name": _key_stream_like_name,
}
