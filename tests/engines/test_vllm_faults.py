"""A store or a keyring that is dead, slow or talks nonsense costs speed and no answer.

The stated slowdown: no request takes longer than it takes to compute it, and the bounds of one
look-up and one load, beside what the machine does.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.conftest import Ward, open_gateway
from engines.flaky_proxy import FlakyProxy, Mood
from engines.test_vllm_tampering import KEYS_S, forget_resident, prompt, wait_for
from engines.vllm_server import (
    Answer,
    VllmServer,
    complete,
    read_counts,
    same,
    ward_arguments,
)
from kvward.cli.process import ServerProcess
from services.valkey import ValkeyServer

pytestmark = [pytest.mark.timeout(1200), pytest.mark.vllm]

_LOOKUP_MS, _LOAD_S = 50.0, 0.5
_SLACK_S = 3.0  # two shared cores
_CONVERSATIONS = ("one", "two", "three")


@pytest.fixture
def proxy() -> Iterator[FlakyProxy]:
    with ValkeyServer() as server, FlakyProxy(server.node.port) as proxy:
        yield proxy


@pytest.fixture
def served(
    canary: Path,
    ward: Ward,
    proxy: FlakyProxy,
    tmp_path: Path,
    gateways: list[ServerProcess],
) -> Iterator[tuple[VllmServer, str]]:
    text = ward.policy.read_text()
    location = f"valkey://127.0.0.1:{proxy.port}"
    text = text.replace('location = "file:store"', f'location = "{location}"')
    text = text.replace("cache_s = 30", "cache_s = 2")
    ward.policy.write_text(text + "\n")
    with VllmServer(
        model=canary,
        folder=tmp_path / "vllm",
        arguments=ward_arguments(
            events_folder=str(ward.events), lookup_ms=_LOOKUP_MS, load_s=_LOAD_S
        ),
        variables={"KVWARD_POLICY": str(ward.policy), "VLLM_SERVER_DEV_MODE": "1"},
    ) as server:
        yield server, open_gateway(gateways, ward, server.url, log=tmp_path / "gateway.log").url


def ask_all(server: VllmServer, url: str, ward: Ward) -> list[Answer]:
    forget_resident(server)
    return [
        complete(url, prompt(number, 200), key=ward.keys["a"], conversation=name)
        for number, name in enumerate(_CONVERSATIONS)
    ]


def check(answers: list[Answer], clean: list[Answer], *, computed_s: float) -> None:
    for answer, expected in zip(answers, clean, strict=True):
        assert same(answer, expected)
        assert answer.seconds <= computed_s + _LOOKUP_MS / 1e3 + _LOAD_S + _SLACK_S


def test_store_and_keyring_that_fail_cost_speed_and_no_answer(
    served: tuple[VllmServer, str], ward: Ward, proxy: FlakyProxy
) -> None:
    server, url = served
    ask_all(server, url, ward)  # the first requests of an engine are slow
    clean = ask_all(server, url, ward)
    computed_s = max(answer.seconds for answer in clean)
    wait_for(lambda: read_counts(ward.events).get("vllm.batch-kept", 0) >= 3)
    time.sleep(KEYS_S + 1)
    assert all(answer.cached_tokens == 7 * 32 for answer in ask_all(server, url, ward)), "control"

    for mood in (Mood.DEAD, Mood.SLOW, Mood.GARBAGE):
        proxy.become(mood)
        check(ask_all(server, url, ward), clean, computed_s=computed_s)
        check(ask_all(server, url, ward), clean, computed_s=computed_s)
        proxy.become(Mood.SOUND)
        time.sleep(2.5)  # until what was left alone is tried again
        healed = ask_all(server, url, ward)
        check(healed, clean, computed_s=computed_s)
    wait_for(lambda: all(a.cached_tokens == 7 * 32 for a in ask_all(server, url, ward)), seconds=30)

    database = ward.policy.parent / "keyring.db"
    check_keyring(server, url, ward, clean, computed_s, held(database))
    for path in (database, database.with_name(database.name + "-wal")):
        if path.exists():
            path.write_bytes(b"\xa5" * path.stat().st_size)
    time.sleep(2.5)  # until what was remembered of the keyring has ended
    # SQLite may go on with the pages that it has in memory: what it then says is still right.
    check(ask_all(server, url, ward), clean, computed_s=computed_s + 5)
    assert server.is_alive()


def check_keyring(
    server: VllmServer,
    url: str,
    ward: Ward,
    clean: list[Answer],
    computed_s: float,
    hold: threading.Thread,
) -> None:
    """Somebody holds the keyring's database for some seconds: the gateway waits, within bounds."""
    hold.start()
    time.sleep(2.2)
    check(ask_all(server, url, ward), clean, computed_s=computed_s + 6)
    hold.join()


def held(database: Path) -> threading.Thread:
    def hold() -> None:
        connection = sqlite3.connect(database, timeout=30)
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(6)
        connection.rollback()
        connection.close()

    return threading.Thread(target=hold)
