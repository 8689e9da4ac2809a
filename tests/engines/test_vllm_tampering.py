"""What was changed in the store never reaches an answer; and it would have, had it been served.

Two servers for each model: one with the real connector, over a store that is tampered with; one
with a connector that serves tampered plaintext on purpose.
"""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from engines.conftest import Ward, make_ward, open_gateway
from engines.vllm_server import VllmServer, complete, read_counts, same, ward_arguments
from kvward.cli.process import ServerProcess

pytestmark = [pytest.mark.timeout(1200), pytest.mark.vllm]

NUM_TOKENS = 230  # seven full blocks of 32, and some
KEYS_S = 1.2  # that a scope has no keys yet is remembered for a second
KINDS = ("flip", "truncate", "swap", "delete", "other-model", "roll")


def entries(store: Path) -> list[Path]:
    return sorted(path for path in (store / "entries").glob("*/*/*") if path.is_file())


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a stored entry, and leave the times by which it expires."""
    status = path.stat()
    path.write_bytes(change(path.read_bytes()))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def swap_contents(paths: list[Path]) -> None:
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
        rewrite(path, lambda _, content=content: content)


def tamper(kind: str, paths: list[Path], foreign: list[Path]) -> None:
    match kind:
        case "flip":
            for number, path in enumerate(paths):
                rewrite(path, lambda data, n=number: flip_bit(data, Random(n)))
        case "truncate":
            for path in paths:
                rewrite(path, lambda data: data[: len(data) // 2])
        case "swap":
            # With another conversation's: among a prompt's own blocks an exchange is invisible to
            # attention, whose keys carry their positions in themselves.
            for path, other in zip(paths, foreign, strict=True):
                swap_contents([path, other])
        case "delete":
            for path in paths:
                path.unlink()
        case "other-model":
            for path, other in zip(paths, foreign, strict=True):
                rewrite(path, lambda _, other=other: other.read_bytes())
        case "roll":
            for path in paths:
                rewrite(path, lambda data: data[:-256][-4096:] + data[: -4096 - 256] + data[-256:])


def flip_bit(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << random.randrange(8))]) + data[place + 1 :]


def forget_resident(server: VllmServer) -> None:
    """Empty the engine's own prefix cache, so that the store is asked."""
    request = urllib.request.Request(f"{server.url}/reset_prefix_cache", method="POST", data=b"")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def wait_for(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert condition()


def prompt(seed: int, vocabulary: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(20, vocabulary) for _ in range(NUM_TOKENS)]


@pytest.fixture(params=["canary", "smollm2"])
def model(request: pytest.FixtureRequest) -> tuple[str, Path, int]:
    vocabulary = {"canary": 200, "smollm2": 40000}[request.param]
    return request.param, request.getfixturevalue(request.param), vocabulary


@pytest.fixture
def served(
    model: tuple[str, Path, int], ward: Ward, gateways: list[ServerProcess], tmp_path: Path
) -> Iterator[tuple[VllmServer, str]]:
    arguments = ward_arguments(events_folder=str(ward.events), lookup_ms=1000.0, load_s=10.0)
    variables = {"KVWARD_POLICY": str(ward.policy), "VLLM_SERVER_DEV_MODE": "1"}
    with VllmServer(
        model=model[1], folder=tmp_path / "vllm", arguments=arguments, variables=variables
    ) as server:
        gateway = open_gateway(gateways, ward, server.url, log=tmp_path / "gateway.log")
        yield server, gateway.url


def test_tampering_costs_speed_and_changes_no_answer(
    served: tuple[VllmServer, str], model: tuple[str, Path, int], ward: Ward
) -> None:
    server, url = served
    name, _, vocabulary = model
    key = ward.keys["a"]
    token_ids = prompt(1, vocabulary)
    # Entries of another prompt stand for those of another model: the shape is the same, and what
    # is tested here is that a foreign entry does not open; other models are test_vllm_models.py's.
    complete(url, prompt(2, vocabulary), key=ward.keys["b"], conversation="foreign")
    wait_for(lambda: len(entries(ward.store)) == 7)
    foreign = entries(ward.store)
    intact = [path.read_bytes() for path in foreign]
    clean = complete(url, token_ids, key=key, conversation="x")
    assert clean.cached_tokens == 0
    wait_for(lambda: len(entries(ward.store)) == 14)

    time.sleep(KEYS_S)
    forget_resident(server)
    restored = complete(url, token_ids, key=key, conversation="x")
    assert restored.cached_tokens == 7 * 32
    assert same(restored, clean), "control: what is intact is served, and equals"

    for kind in KINDS:
        mine = [path for path in entries(ward.store) if path not in foreign]
        assert len(mine) == 7
        time.sleep(1.5)  # until the counts are written
        before = read_counts(ward.events)
        tamper(kind, mine, foreign)
        forget_resident(server)
        answer = complete(url, token_ids, key=key, conversation="x")
        assert same(answer, clean), (name, kind)
        for path, content in zip(foreign, intact, strict=True):
            rewrite(path, lambda _, content=content: content)
        wait_for(lambda: len(entries(ward.store)) == 14)  # computed anew, kept anew
        time.sleep(1.5)  # until the counts are written
        after = read_counts(ward.events)
        if kind == "delete":
            # Missing from the start: nothing was offered, so nothing had to be refused.
            assert after.get("vllm.load-placed", 0) == before.get("vllm.load-placed", 0)
        else:
            refused = after.get("store.refused", 0) - before.get("store.refused", 0)
            assert refused == 7, (kind, after)
            assert after["vllm.load-failed"] == before.get("vllm.load-failed", 0) + 1
        forget_resident(server)
        healed = complete(url, token_ids, key=key, conversation="x")
        assert healed.cached_tokens == 7 * 32
        assert same(healed, clean)
    assert server.is_alive()


def test_serving_what_was_tampered_with_would_have_changed_the_answer(
    model: tuple[str, Path, int],
    gateways: list[ServerProcess],
    tmp_path: Path,
) -> None:
    name, folder, vocabulary = model
    ward = make_ward(tmp_path / "ward")
    control, foreign = tmp_path / "tamper", tmp_path / "foreign"
    arguments = ward_arguments(
        module="engines.careless_connector",
        name="CarelessConnector",
        events_folder=str(ward.events),
        lookup_ms=1000.0,
        load_s=10.0,
    )
    tests = Path(__file__).parent.parent
    variables = {
        "KVWARD_POLICY": str(ward.policy),
        "VLLM_SERVER_DEV_MODE": "1",
        "KVWARD_TEST_TAMPER": str(control),
        "KVWARD_TEST_FOREIGN": str(foreign),
        "PYTHONPATH": f"{tests.parent / 'src'}{os.pathsep}{tests}",
    }
    with VllmServer(
        model=folder, folder=tmp_path / "vllm", arguments=arguments, variables=variables
    ) as server:
        url = open_gateway(gateways, ward, server.url, log=tmp_path / "gateway.log").url
        key = ward.keys["a"]
        complete(url, prompt(2, vocabulary), key=key, conversation="foreign")
        clean = complete(url, prompt(1, vocabulary), key=key, conversation="x")
        wait_for(lambda: len(entries(ward.store)) == 14 and foreign.is_file())
        time.sleep(KEYS_S)
        blind = set()
        for kind in KINDS:
            control.write_text(kind)
            forget_resident(server)
            answer = complete(url, prompt(1, vocabulary), key=key, conversation="x")
            assert answer.cached_tokens == 7 * 32
            if same(answer, clean):
                blind.add(kind)
        control.unlink()
        forget_resident(server)
        assert same(complete(url, prompt(1, vocabulary), key=key, conversation="x"), clean)
    assert not blind, name
