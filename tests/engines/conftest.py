"""Models and policies for the tests that run real engines."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engines.vllm_server import PYTHON
from kvward.audit.canary.checkpoint import write_canary_model
from kvward.cli.process import ServerProcess
from kvward.lab.fetch import cache_folder, fetch_smollm2
from kvward.terms import SharingLevel
from servers import write_policy

_NEEDED = {
    "vllm": ("KVWARD_VLLM_PYTHON",),
    "lmcache": ("KVWARD_VLLM_PYTHON", "KVWARD_LMCACHE_PYTHON", "KVWARD_LMCACHE_FOR_VLLM"),
    "llamacpp": ("KVWARD_LLAMA_SERVER",),
}
_CONVERT = Path(__file__).parent.parent.parent / "tools" / "convert_smollm2.py"


@pytest.fixture(autouse=True)
def _has_its_engine(request: pytest.FixtureRequest) -> None:
    """Skip a test whose engine nobody named; one that was named and is not there fails it."""
    for marker, variables in _NEEDED.items():
        if request.node.get_closest_marker(marker) is None:
            continue
        for variable in variables:
            named = os.environ.get(variable)
            if not named:
                pytest.skip(f"{variable} names no engine; `make test-{marker}` does")
            assert Path(named).exists(), f"{variable} names {named}, which is not there"


@pytest.fixture(scope="session")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "canary"
    write_canary_model(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2 as vLLM reads it; converted once, beside the file that was fetched."""
    gguf = fetch_smollm2(cache_folder())
    folder = gguf.parent / "smollm2-vllm"
    subprocess.run([PYTHON, str(_CONVERT), str(gguf), str(folder)], check=True)
    return folder


@dataclass(frozen=True, kw_only=True)
class Ward:
    """A policy with a store, and where everything of it lies."""

    policy: Path
    keys: dict[str, str]
    store: Path
    events: Path


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return make_ward(tmp_path / "ward")


def make_ward(
    folder: Path,
    *,
    level: SharingLevel = SharingLevel.CONVERSATION,
    tenants: tuple[str, ...] = ("a", "b", "c"),
    keep: bool = True,
) -> Ward:
    keys, policy = write_policy(folder, level=level, keep=keep, tenants=tenants)
    return Ward(policy=policy, keys=keys, store=folder / "store", events=folder / "events")


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Gateways that a test has started; stopped after it."""
    running: list[ServerProcess] = []
    yield running
    for server in running:
        server.stop()


def open_gateway(
    running: list[ServerProcess], ward: Ward, upstream: str, *, log: Path
) -> ServerProcess:
    server = ServerProcess(
        ["serve", "--config", str(ward.policy), "--upstream", upstream], log=log
    ).__enter__()
    running.append(server)
    return server
