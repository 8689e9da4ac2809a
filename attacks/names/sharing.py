"""Strategies that tell whether two sides hold the same: a score that differs where they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from attacks.names.candidates import iter_windows
from attacks.names.world import Bytes, View

Strategy = Callable[[View], float]


def _bits(field: str) -> Strategy:
    """Compare a field of both sides' blocks, each with the one stored at the same time."""
    return lambda view: float(
        np.bitwise_count(view.one.field(field) ^ view.other.field(field)).sum(dtype=np.int64)
    )


def _nearest(field: str) -> Strategy:
    """Compare a field of both sides' blocks, each with the most similar one."""

    def score(view: View) -> float:
        one, other = view.one.field(field), view.other.field(field)
        differing = np.bitwise_count(one[:, None] ^ other[None]).sum(axis=2, dtype=np.int64)
        return float(differing.min())

    return score


def _equal_names(view: View) -> float:
    return float(len({name.name for name in view.one.names} & _names(view)))


def _equal_paths(view: View) -> float:
    return float(len(set(view.one.names) & set(view.other.names)))


def _equal_windows(view: View) -> float:
    """Count 8 bytes that occur on both sides, wherever they are."""
    return float(len(set(iter_windows(view.one)) & set(iter_windows(view.other))))


def _differences(view: View) -> float:
    """Compare differences of names: a mask of each tenant's would cancel out."""
    one, other = view.one.field("name"), view.other.field("name")
    return float(np.bitwise_count(one[0] ^ one[1] ^ other[0] ^ other[1]).sum(dtype=np.int64))


def _order(view: View) -> float:
    """Compare the order of names."""
    return float((_ranks(view.one.field("name")) == _ranks(view.other.field("name"))).all())


def _byte_values(field: str) -> Strategy:
    """Correlate how often byte values occur on both sides."""

    def score(view: View) -> float:
        one, other = (
            np.bincount(holding.field(field).ravel(), minlength=256)
            for holding in (view.one, view.other)
        )
        return float((one * other).sum())

    return score


def _first_bytes(view: View) -> float:
    """Count leading bits of names that agree."""
    names = [
        int.from_bytes(holding.field("name")[-1].tobytes(), "big")
        for holding in (view.one, view.other)
    ]
    return float((names[0] ^ names[1]).bit_length())


def _names(view: View) -> set[bytes]:
    return {name.name for name in view.other.names}


def _ranks(rows: Bytes) -> Bytes:
    return np.argsort([row.tobytes() for row in rows]).astype(np.uint8)


SHARING: Mapping[str, Strategy] = {
    "equal names": _equal_names,
    "equal paths": _equal_paths,
    "any 8 equal bytes": _equal_windows,
    "differences of names": _differences,
    "order of names": _order,
    "leading bits of names": _first_bytes,
    **{
        f"bits of the {field}": _bits(field)
        for field in ("name", "scope", "tenant", "key id", "nonce", "body", "tag")
    },
    **{f"nearest {field}": _nearest(field) for field in ("name", "nonce", "body", "tag")},
    **{f"byte values of the {field}": _byte_values(field) for field in ("name", "body")},
}
