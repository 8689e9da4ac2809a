"""Prove at the start that the engine's own prefix cache follows our names, or refuse to start.

Requests that will never run are given to vLLM's real cache manager: what one of a scope has cached,
another of the same scope must find, and nobody else may.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from kvward.errors import CapabilityError
from kvward.scope import TokenKey
from kvward.scope.derive import SCOPE_ID_BYTES
from kvward.scope.token import encode_token

_NUM_BLOCKS = 2


def check_local_cache(
    manager: Any,
    *,
    token_key: TokenKey,
    block_tokens: int,
    make_request: Callable[[str, list[int], str | None], Any],
    arrive: Callable[[Any], None],
    leave: Callable[[Any], None],
) -> None:
    """Refuse an engine whose own prefix cache does not keep scopes apart.

    Args:
        manager: vLLM's `KVCacheManager`, with nothing in it yet.
        make_request: Makes one of vLLM's requests from id, token ids and salt, with names of its
            blocks that are the same for everybody.
        arrive: The connector's, which puts our names in their place.
        leave: Undoes `arrive`.
    Raises:
        CapabilityError: Our names decide nothing, or not everything.
    """
    if not manager.enable_caching:
        return
    mine, other = (
        encode_token(token_key, scope_id=secrets.token_bytes(SCOPE_ID_BYTES), epoch=0)
        for _ in range(2)
    )
    token_ids = list(range(1, _NUM_BLOCKS * block_tokens + 2))

    def found_by(salt: str | None, *, keep: bool = False) -> int:
        request = make_request(f"kvward-{secrets.token_hex(8)}", token_ids, salt)
        arrive(request)
        _, num_tokens, *_ = manager.get_computed_blocks(request)
        if keep:
            manager.allocate_slots(request, len(token_ids))
            manager.free(request)
        leave(request)
        return int(num_tokens)

    before = found_by(mine, keep=True)
    after = found_by(mine)
    forged = "kw1.forged"
    strangers = [found_by(other), found_by(None), found_by(forged, keep=True), found_by(forged)]
    manager.reset_prefix_cache()
    if before != 0 or after != _NUM_BLOCKS * block_tokens or any(strangers):
        raise CapabilityError(
            "The engine's prefix cache does not follow the names of blocks that the connector "
            f"gives: {before} tokens found before, {after} in the same scope, {strangers} "
            "elsewhere.",
            hint="This engine keeps another kind of prefix cache. Run it without the connector, "
            "or with --no-enable-prefix-caching.",
        )
