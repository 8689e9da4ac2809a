"""The table of routes against what the installed vLLM registers: none may be unknown.

Runs by `make test-engines` where vLLM is installed; builds the API server's application with every
task and switch, without a model or an engine.
"""

from __future__ import annotations

import importlib
import typing
from types import SimpleNamespace
from typing import Any

import pytest

from kvward.gateway.inventory import take_inventory
from kvward.gateway.table import ROUTES, Kind

# The framework's own warnings are not ours.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
pytest.importorskip("vllm", reason="vLLM is not installed")

SWITCHES = ["--enable-scale-out", "--enable-tokenizer-info-endpoint", "--enable-offline-docs"]


def every(kind: Any) -> list[str]:
    if isinstance(kind, str):
        return [kind]
    return [name for inner in typing.get_args(kind) for name in every(inner)]


@pytest.fixture(scope="module")
def applications() -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        launcher = importlib.import_module("vllm.entrypoints.launchers.app")
        options = importlib.import_module("vllm.entrypoints.launchers.cli_args")
        parsing = importlib.import_module("vllm.utils.argparse_utils")
        tasks = tuple(dict.fromkeys(every(importlib.import_module("vllm.tasks").SupportedTask)))
        parser = options.make_arg_parser(parsing.FlexibleArgumentParser())
        # As much of a model as decides which routes of pooling there are.
        model = SimpleNamespace(
            get_pooling_task=lambda _: "embed", score_type="bi-encoder", is_cross_encoder=False,
            pooler_config=None, hf_config=SimpleNamespace(num_labels=1), io_processor_plugin=None,
        )  # fmt: skip
        built = []
        for switches in ([], SWITCHES):
            arguments = parser.parse_args(["--model", "none", *switches])
            arguments.enable_fault_tolerance = True
            arguments.profiler_config = _profiler()
            built.append(launcher.build_app(arguments, tasks, model))
        return built


def _profiler() -> Any:
    config = importlib.import_module("vllm.config").ProfilerConfig
    return config(profiler="torch", torch_profiler_dir="/tmp")


def test_no_route_of_vllm_is_unknown(applications: list[Any]) -> None:
    found = set()
    for application in applications:
        inventory = take_inventory(application)
        assert inventory.found is not None
        assert not inventory.unknown
        found |= set(inventory.found)
    assert len(found) > 60
    there = {(each.method, each.path) for each in found}
    missing = {(r.method, r.path) for r in ROUTES if r.kind is not Kind.REFUSED} - there
    assert not missing


def test_every_scoped_route_takes_a_salt(applications: list[Any]) -> None:
    scoped = {route.path for route in ROUTES if route.kind is Kind.SCOPED}
    # Counts tokens and touches no cache; it is scoped so that it is there only with its protocol.
    scoped.remove("/v1/messages/count_tokens")
    seen = set()
    for application in applications:
        for route in application.routes:
            if getattr(route, "path", None) in scoped:
                hints = typing.get_type_hints(route.endpoint)
                for body in typing.get_args(hints["request"]) or (hints["request"],):
                    fields = (typing.get_origin(body) or body).model_fields
                    assert "cache_salt" in fields, (route.path, body)
                seen.add(route.path)
    assert seen == scoped
