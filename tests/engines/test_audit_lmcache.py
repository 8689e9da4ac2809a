"""What `kvward audit` says of vLLM with LMCache in server mode, bare and with the gateway's salts.

A restart of vLLM leaves what lies with LMCache, in its memory and in its folder: tier `remote`. A
restart of both leaves the folder alone: tier `disk`, and the only one that LMCache encrypts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines.auditing import (
    STOCK_KEYS,
    assert_content_not_observed,
    assert_metadata,
    audit,
    audit_behind_restart,
)
from engines.conftest import make_ward, open_gateway
from engines.lmcache_server import LMCacheServer
from engines.vllm_server import VllmServer
from kvward.cli.process import ServerProcess

pytestmark = [pytest.mark.timeout(3600), pytest.mark.lmcache]

_SHARED = {"S0": "NOT_OBSERVED", "S2": "VIOLATED", "S3": "VIOLATED", "S5": "VIOLATED"}
_APART = dict.fromkeys(_SHARED, "NOT_OBSERVED")
_KEY_BITS = 256


class Stack:
    """vLLM, the LMCache server that it asks, and where to reach it under which keys."""

    def __init__(
        self, name: str, lmcache: LMCacheServer, vllm: VllmServer, url: str, keys: dict[str, str]
    ) -> None:
        self.name = name
        self.lmcache, self.vllm = lmcache, vllm
        self.url, self.keys = url, keys

    def restart_both(self) -> None:
        """Empty the memory of both; vLLM first, because it waits long for a lost LMCache."""
        self.vllm.stop()
        self.lmcache.stop()
        self.lmcache.start()
        self.vllm.start()


@pytest.fixture
def serve(
    canary: Path, tmp_path: Path, gateways: list[ServerProcess]
) -> Iterator[Callable[..., Stack]]:
    """Start a stack: with the gateway before it or bare, its folder encrypted or plain."""
    running: list[LMCacheServer | VllmServer] = []

    def start(*, guarded: bool, encrypted: bool) -> Stack:
        serde = aesgcm(tmp_path / "master.key") if encrypted else None
        lmcache = LMCacheServer(folder=tmp_path / "lmcache", serde=serde)
        vllm = VllmServer(
            model=canary,
            folder=tmp_path / "vllm",
            arguments=lmcache.vllm_arguments(),
            variables=lmcache.vllm_variables(),
        )
        for server in (lmcache, vllm):
            server.start()
            running.append(server)
        name = f"vllm and LMCache{' aesgcm' if encrypted else ''}"
        if not guarded:
            return Stack(f"{name}, bare", lmcache, vllm, vllm.url, STOCK_KEYS)
        ward = make_ward(tmp_path / "ward", keep=False)
        gateway = open_gateway(gateways, ward, vllm.url, log=tmp_path / "gateway.log")
        return Stack(f"{name}, gateway", lmcache, vllm, gateway.url, ward.keys)

    yield start
    for server in reversed(running):
        server.stop()


def aesgcm(key: Path) -> dict[str, object]:
    key.write_bytes(bytes(range(32)))
    return {"type": "aesgcm", "master_key_path": str(key), "aes_bits": _KEY_BITS}


@pytest.mark.parametrize("guarded", [False, True], ids=["bare", "gateway"])
def test_lmcache_keeps_to_the_salts_that_it_is_given(
    serve: Callable[..., Stack], tmp_path: Path, guarded: bool
) -> None:
    """Bare there are none, so every tier is one scope for all."""
    stack = serve(guarded=guarded, encrypted=False)
    expected = _APART if guarded else _SHARED
    for tier, restart in (("remote", stack.vllm.restart), ("disk", stack.restart_both)):
        found = audit_behind_restart(
            restart, stack.url, stack.keys, tmp_path / tier, tier=tier,
            record=f"{stack.name}, {tier}",
        )  # fmt: skip
        assert found.tiers() == {tier}
        assert found.is_read_by_its_owner()
        assert_metadata(found, **expected)
    found = audit(stack.url, stack.keys, tmp_path / "device", record=f"{stack.name}, device")
    assert_metadata(found, **expected)
    assert_content_not_observed(found)


@pytest.mark.parametrize("guarded", [False, True], ids=["bare", "gateway"])
def test_encryption_changes_nothing_that_a_tenant_sees(
    serve: Callable[..., Stack], tmp_path: Path, guarded: bool
) -> None:
    """Bare, whoever asks for another's entry is given it in clear: LMCache holds the key."""
    stack = serve(guarded=guarded, encrypted=True)
    found = audit_behind_restart(
        stack.restart_both, stack.url, stack.keys, tmp_path / "disk", tier="disk",
        record=f"{stack.name}, disk",
    )  # fmt: skip
    assert_is_encrypted(stack.lmcache.disk)
    assert found.tiers() == {"disk"}
    assert found.is_read_by_its_owner()
    assert_metadata(found, **(_APART if guarded else _SHARED))


def assert_is_encrypted(folder: Path) -> None:
    """No entry repeats itself, as the canary's keys, which are constant, do in clear."""
    entries = [path.read_bytes() for path in folder.rglob("*.data")]
    assert entries
    assert not any(entry[256:512] in entry[512:] for entry in entries)
