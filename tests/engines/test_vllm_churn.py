"""Churn on real vLLM behind the ward: small pool, many clients, cancellations, preemptions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engines.conftest import Ward, open_gateway
from engines.vllm_server import BLOCK_TOKENS, MODEL_NAME, VllmServer, ward_arguments
from kvward.cli.process import ServerProcess

pytestmark = [pytest.mark.timeout(2400), pytest.mark.vllm]

_ROOT = Path(__file__).parent.parent.parent
# By hand it runs longer, and writes what it found down: see `make soak-churn`.
_SECONDS = os.environ.get("KVWARD_CHURN_SECONDS", "150")
# oneDNN keeps up to 1,024 compiled kernels, one for every shape of a batch that it has met, and
# this load goes on bringing new ones: the engine grew by 300 to 340 MiB a minute. Held to eight
# kernels it is flat under the same load, so what still grows would be ours.
_KERNEL_CACHE = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8"}
_ALLOWANCE_MIB = "128"
_RESULT = os.environ.get("KVWARD_CHURN_RESULT")


def test_churn_crosses_nothing_leaks_nothing_and_grows_nothing(
    canary: Path, ward: Ward, tmp_path: Path, gateways: list[ServerProcess]
) -> None:
    result = Path(_RESULT) if _RESULT else tmp_path / "churn.json"
    with VllmServer(
        model=canary,
        folder=tmp_path / "vllm",
        arguments=[
            # Copies that wait to be sealed are memory in use, not lost: here they stay few.
            *ward_arguments(events_folder=str(ward.events), pending_bytes=32 << 20),
            "--max-model-len", "2048", "--num-gpu-blocks-override", "256", "--max-num-seqs", "32",
        ],
        variables={"KVWARD_POLICY": str(ward.policy), **_KERNEL_CACHE},
    ) as server:  # fmt: skip
        gateway = open_gateway(gateways, ward, server.url, log=tmp_path / "gateway.log")
        command = [
            sys.executable, "-m", "attacks.churn", gateway.url, "--model", MODEL_NAME,
            "--seconds", _SECONDS, "--clients", "32", "--block-tokens", str(BLOCK_TOKENS),
            "--max-tokens", "1500", "--answer-tokens", "48", "--seed", "4",
            "--engine-pid", str(server.pid), "--metrics-url", f"{server.url}/metrics",
            "--json", str(result), "--memory-allowance", _ALLOWANCE_MIB,
        ]  # fmt: skip
        for name in ward.keys:
            command += ["--tenant", f"{name}=env:KEY_{name}"]
        environment = os.environ | {f"KEY_{name}": key for name, key in ward.keys.items()}
        done = subprocess.run(
            command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=2200
        )
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        assert server.is_alive()
    assert json.loads(result.read_text())["outcome"] == "NOT_OBSERVED"
