"""State of one model is never another's: other weights, other RoPE scaling, another adapter."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.conftest import Ward, open_gateway
from engines.test_vllm_tampering import entries, prompt, wait_for
from engines.vllm_server import (
    MODEL_NAME,
    PYTHON,
    Answer,
    VllmServer,
    complete,
    same,
    ward_arguments,
)
from kvward.cli.process import ServerProcess

pytestmark = [pytest.mark.timeout(1800), pytest.mark.vllm]

_VARY = Path(__file__).parent.parent.parent / "tools" / "vary_model.py"
_PROMPT = prompt(7, 40000)
_WHOLE = 7 * 32


def vary(*arguments: str) -> None:
    subprocess.run([PYTHON, str(_VARY), *arguments], check=True)


@contextlib.contextmanager
def serve(
    model: Path, ward: Ward, folder: Path, *arguments: str, **variables: str
) -> Iterator[tuple[str, VllmServer]]:
    """Serve a model over the ward's store; yields the gateway's URL."""
    running: list[ServerProcess] = []
    settings = ward_arguments(events_folder=str(ward.events), lookup_ms=1000.0, load_s=10.0)
    with VllmServer(
        model=model,
        folder=folder,
        arguments=[*settings, *arguments],
        variables={"KVWARD_POLICY": str(ward.policy), **variables},
    ) as server:
        try:
            yield open_gateway(running, ward, server.url, log=folder / "gateway.log").url, server
        finally:
            for gateway in running:
                gateway.stop()


def ask(url: str, ward: Ward, conversation: str, *, model: str = MODEL_NAME) -> Answer:
    return complete(
        url, _PROMPT, key=ward.keys["a"], conversation=conversation, body={"model": model}
    )


def test_other_weights_and_other_rope_scaling_share_nothing(
    smollm2: Path, ward: Ward, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    vary("weights", str(smollm2), str(other))
    with serve(smollm2, ward, tmp_path / "one") as (url, _):
        first = ask(url, ward, "x")
        wait_for(lambda: len(entries(ward.store)) == 7)
    scaled = json.dumps({"rope_parameters": {"rope_type": "linear", "factor": 2.0,
                                             "rope_theta": 100000.0}})  # fmt: skip
    variants = [("weights", other, []), ("rope", smollm2, ["--hf-overrides", scaled])]
    for number, (name, model, arguments) in enumerate(variants, start=2):
        with serve(model, ward, tmp_path / name, *arguments) as (url, _):
            crossed = ask(url, ward, "x")
            clean = ask(url, ward, "untouched")
        assert crossed.cached_tokens == 0, name
        assert same(crossed, clean), name
        assert not same(crossed, first), f"control: {name} answers otherwise"
        wait_for(lambda n=number: len(entries(ward.store)) >= 7 * n)
    with serve(smollm2, ward, tmp_path / "again") as (url, _):
        again = ask(url, ward, "x")
    assert again.cached_tokens == _WHOLE, "control: the first model finds its own"
    assert same(again, first)


def test_an_adapter_reloaded_in_place_under_its_name_shares_nothing(
    smollm2: Path, ward: Ward, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    vary("adapter", str(smollm2), str(adapter), "1")
    with serve(
        smollm2,
        ward,
        tmp_path / "vllm",
        "--enable-lora",
        "--max-lora-rank",
        "8",
        "--lora-modules",
        f"tuned={adapter}",
        VLLM_ALLOW_RUNTIME_LORA_UPDATING="1",
    ) as (url, server):
        base = ask(url, ward, "x")
        tuned = ask(url, ward, "x", model="tuned")
        assert tuned.cached_tokens == 0
        assert not same(tuned, base), "control: the adapter matters"
        wait_for(lambda: len(entries(ward.store)) == 14)
        assert ask(url, ward, "x", model="tuned").cached_tokens == _WHOLE, "control: own reuse"

        vary("adapter", str(smollm2), str(adapter), "2")
        unknown = ask(url, ward, "x", model="tuned")
        assert unknown.cached_tokens == 0, "files changed, and nobody said what is loaded"
        assert same(unknown, tuned), "the engine still has the first"
        reload_in_place(server, adapter)
        reloaded = ask(url, ward, "x", model="tuned")
        clean = ask(url, ward, "untouched", model="tuned")
        assert reloaded.cached_tokens == 0
        assert same(reloaded, clean)
        assert not same(reloaded, tuned), "control: the second adapter answers otherwise"
        again = ask(url, ward, "x", model="tuned")
        assert again.cached_tokens == _WHOLE
        assert same(again, reloaded)
        assert ask(url, ward, "x").cached_tokens == _WHOLE


def reload_in_place(server: VllmServer, adapter: Path) -> None:
    value = {"lora_name": "tuned", "lora_path": str(adapter), "load_inplace": True}
    request = urllib.request.Request(
        f"{server.url}/v1/load_lora_adapter",
        data=json.dumps(value).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.status == 200
