"""Spans on real vLLM: resident once, stored once, shared as far as the policy says."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engines.conftest import Ward, open_gateway
from engines.minting import Minter, open_minter
from engines.test_vllm_tampering import KEYS_S, entries, forget_resident, wait_for
from engines.vllm_server import (
    BLOCK_TOKENS,
    MODEL_NAME,
    Answer,
    VllmServer,
    complete,
    read_counts,
    same,
    ward_arguments,
)
from kvward.cli.process import ServerProcess

pytestmark = [pytest.mark.timeout(1200), pytest.mark.vllm]

_PUBLIC = Random(1).sample(range(1000, 40000), 100)  # three blocks and four tokens
_SYSTEM = Random(2).sample(range(1000, 40000), 170)  # five blocks and ten tokens


def tail(seed: int) -> list[int]:
    return Random(seed).sample(range(1000, 40000), 60)


@pytest.fixture
def served(smollm2: Path, ward: Ward, tmp_path: Path) -> Iterator[tuple[VllmServer, Minter]]:
    folder = ward.policy.parent
    (folder / "prefix.json").write_text(json.dumps(_PUBLIC))
    with ward.policy.open("a") as policy:
        policy.write('\n[[public_prefixes]]\nname = "p"\ntoken_ids_file = "prefix.json"\n')
    with (
        VllmServer(
            model=smollm2,
            folder=tmp_path / "vllm",
            arguments=ward_arguments(events_folder=str(ward.events), lookup_ms=1000.0, load_s=10.0),
            variables={"KVWARD_POLICY": str(ward.policy), "VLLM_SERVER_DEV_MODE": "1"},
        ) as server,
        open_minter(ward.policy) as minter,
    ):
        yield server, minter


def ask(server: VllmServer, token_ids: list[int], fields: dict[str, Any]) -> Answer:
    return complete(server.url, token_ids, max_tokens=4, body=fields)


def blocks(answer: Answer) -> int:
    assert answer.cached_tokens % BLOCK_TOKENS == 0
    return answer.cached_tokens // BLOCK_TOKENS


def test_a_public_prefix_is_written_by_its_warm_up_alone(
    served: tuple[VllmServer, Minter], ward: Ward
) -> None:
    server, minter = served
    prompt = _PUBLIC + tail(1)
    before = ask(server, prompt, minter.conversation("a", "x"))
    assert blocks(before) == 0
    # What a tenant computed of it is the tenant's: nobody else finds it.
    assert blocks(ask(server, prompt, minter.conversation("b", "x"))) == 0
    ask(server, [*_PUBLIC, 7], minter.warm_up("p"))
    for tenant in ("b", "c"):
        answer = ask(server, _PUBLIC + tail(2), minter.conversation(tenant, "new"))
        assert blocks(answer) == len(_PUBLIC) // BLOCK_TOKENS, tenant
    assert blocks(ask(server, _PUBLIC + tail(2), minter.conversation("b", "new"))) == 4
    assert blocks(ask(server, [*_PUBLIC, *tail(2)], minter.conversation("c", "other"))) == 3
    same_text = ask(server, prompt, minter.conversation("c", "y"))
    assert blocks(same_text) == 3
    assert same(same_text, before)
    # And something of all this was kept outside the engine.
    wait_for(lambda: read_counts(ward.events).get("vllm.batch-kept", 0) > 0)


def test_a_public_prefix_comes_back_from_the_store_after_a_restart(
    served: tuple[VllmServer, Minter], ward: Ward
) -> None:
    server, minter = served
    ask(server, [*_PUBLIC, 7], minter.warm_up("p"))
    wait_for(lambda: len(entries(ward.store)) == 3)
    server.restart()
    answer = ask(server, _PUBLIC + tail(3), minter.conversation("a", "x"))
    assert blocks(answer) == 3
    again = ask(server, _PUBLIC + tail(4), minter.conversation("b", "x"))
    assert blocks(again) == 3


def test_a_tenants_system_prompt_is_shared_in_the_tenant_and_nowhere_else(
    served: tuple[VllmServer, Minter], ward: Ward
) -> None:
    server, minter = served
    whole = len(_SYSTEM) // BLOCK_TOKENS
    first = ask(server, _SYSTEM + tail(1), minter.conversation("a", "one", system=_SYSTEM))
    assert blocks(first) == 0
    second = ask(server, _SYSTEM + tail(2), minter.conversation("a", "two", system=_SYSTEM))
    assert blocks(second) == whole
    # The private rest is not: the very same prompt in a third conversation finds the span only.
    third = ask(server, _SYSTEM + tail(1), minter.conversation("a", "three", system=_SYSTEM))
    assert blocks(third) == whole
    assert same(third, first)
    # Nor anything across tenants, with or without the same span.
    assert blocks(ask(server, _SYSTEM + tail(1), minter.conversation("b", "one"))) == 0
    crossed = minter.conversation("b", "two", system=_SYSTEM)
    assert blocks(ask(server, _SYSTEM + tail(1), crossed)) == 0
    # A span that names other tokens, or another's, gives nothing.
    lying = minter.conversation("c", "x", system=_SYSTEM)
    assert blocks(ask(server, [*_SYSTEM[:-1], 5, *tail(1)], lying)) == 0
    moved = minter.conversation("c", "y")
    moved["kv_transfer_params"] |= {
        "kvward_spans": minter.conversation("a", "one", system=_SYSTEM)["kv_transfer_params"][
            "kvward_spans"
        ]
    }
    assert blocks(ask(server, _SYSTEM + tail(1), moved)) == 0
    # Stored once in the tenant's scope, and found there when the engine has forgotten.
    wait_for(lambda: len(entries(ward.store)) >= whole)
    time.sleep(KEYS_S)
    forget_resident(server)
    fourth = ask(server, _SYSTEM + tail(9), minter.conversation("a", "four", system=_SYSTEM))
    assert blocks(fourth) == whole


def test_the_gateway_finds_the_span_of_a_chat(
    smollm2: Path, ward: Ward, tmp_path: Path, gateways: list[ServerProcess]
) -> None:
    text = ward.policy.read_text()
    ward.policy.write_text(text.replace("[levels]", '[spans]\nsystem = "tenant"\n\n[levels]'))
    with VllmServer(
        model=smollm2,
        folder=tmp_path / "vllm",
        arguments=ward_arguments(events_folder=str(ward.events)),
        variables={"KVWARD_POLICY": str(ward.policy)},
    ) as server:
        url = open_gateway(gateways, ward, server.url, log=tmp_path / "gateway.log").url
        system = "You answer for the harbour office. " * 40
        reused = [
            chat(url, ward.keys[tenant], system, question)
            for tenant, question in [
                ("a", "Which ships are late?"),
                ("a", "\n\nIs the crane free?"),
                ("a", "Who is on watch?"),
                ("b", "Which ships are late?"),
                ("b", "Who is on watch?"),
            ]
        ]
    assert reused[0] == 0
    assert reused[1] == reused[2] > 200, reused
    assert reused[3] == 0, "another tenant with the same system prompt finds nothing"
    assert reused[4] == reused[1]


def chat(url: str, key: str, system: str, question: str) -> int:
    value = {
        "model": MODEL_NAME,
        "max_tokens": 2,
        "temperature": 0,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ],
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(value).encode(),
        headers={"content-type": "application/json", "authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        usage = json.load(response)["usage"]
    return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
