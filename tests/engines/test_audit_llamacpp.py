"""What `kvward audit` says of llama.cpp's server: of its slots, and the prompt cache behind them.

Tier `device` is a slot. Tier `host` is the prompt cache in memory (`--cache-ram`, on by default): a
slot's state goes there when another prompt takes the slot. To ask for that one alone, every slot
is filled with something else between priming and probing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from engines.auditing import (
    STOCK_KEYS,
    Audit,
    assert_metadata,
    audit,
)
from engines.canary_gguf import write_canary_gguf
from engines.conftest import make_ward, open_gateway
from engines.llama_server import SLOTS, LlamaServer, slot_for_each_key
from kvward.cli.process import ServerProcess

pytestmark = [pytest.mark.timeout(3600), pytest.mark.llamacpp]

# After a streamed answer the server closes a connection that it said it would keep.
_WHOLE = ("--no-stream", "--preset", "llamacpp")
_PAIRS = (*_WHOLE, "--channel", "metadata", "--channel", "timing")
_BY_CHANCE = 8  # tokens: what is reused has no blocks, and prompts may begin with the same word
_NO_PROMPT_CACHE = ("--cache-ram", "0")
_SLOT_OF = dict(zip(STOCK_KEYS.values(), range(1, 1 + len(STOCK_KEYS)), strict=True))
_FILL = """
import json, random, sys, urllib.request
from kvward.audit.canary.words import WORDS
url, num_slots = sys.argv[1], int(sys.argv[2])
for slot in range(num_slots):
    prompt = " ".join(random.Random(slot).choices(WORDS, k=200))
    body = {"prompt": prompt, "max_tokens": 1, "id_slot": slot}
    request = urllib.request.Request(
        url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=60).read()
"""


@pytest.fixture(scope="session")
def canary_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "canary.gguf"
    write_canary_gguf(path)
    return path


def audit_prompt_cache(
    server: LlamaServer, url: str, keys: dict[str, str], folder: Path, *, record: str
) -> Audit:
    """Audit what lies behind the slots."""
    folder.mkdir()
    script, controls = folder / "fill.py", folder / "controls.toml"
    script.write_text(_FILL)
    command = json.dumps([sys.executable, str(script), server.url, str(SLOTS)])
    controls.write_text(
        f"version = 1\n[flush-device]\ncommand = {command}\nempties_in_place = true\n"
    )
    return audit(
        url, keys, folder / "report", *_PAIRS, "--cache-tier", "host",
        "--controls", str(controls), record=record,
    )  # fmt: skip


def test_llamacpp_shares_its_slots(canary_gguf: Path, tmp_path: Path) -> None:
    with LlamaServer(model=canary_gguf, folder=tmp_path / "llama") as server:
        found = audit(
            server.url, STOCK_KEYS, tmp_path / "device", "--no-stream",
            record="llama.cpp, bare, device",
        )  # fmt: skip
        assert found.report["plan"]["preset"] == "llamacpp"  # it was recognised
        behind = audit_prompt_cache(
            server, server.url, STOCK_KEYS, tmp_path / "host", record="llama.cpp, bare, host"
        )
    for audited in (found, behind):
        assert audited.code == 1
        assert audited.is_read_by_its_owner()
        assert_metadata(audited, S2="VIOLATED", S3="VIOLATED", S5="VIOLATED")
    # The server takes logprobs from probabilities, which are 0 below the canary's heights: the
    # auditor does not read its own canary back and says so.
    assert set(found.outcomes("content").values()) == {"INCONCLUSIVE"}
    assert set(found.outcomes("differential").values()) == {"INCONCLUSIVE"}


def test_a_salt_parts_nobody_at_llamacpp(
    canary_gguf: Path, tmp_path: Path, gateways: list[ServerProcess]
) -> None:
    """The gateway sets a salt, and llama.cpp does not know the field."""
    ward = make_ward(tmp_path / "ward", keep=False)
    with LlamaServer(model=canary_gguf, folder=tmp_path / "llama") as server:
        gateway = open_gateway(gateways, ward, server.url, log=tmp_path / "gateway.log")
        found = audit(
            gateway.url, ward.keys, tmp_path / "device", *_PAIRS,
            record="llama.cpp, gateway, device",
        )  # fmt: skip
    assert found.is_read_by_its_owner()
    assert_metadata(found, S2="VIOLATED", S3="VIOLATED", S5="VIOLATED")


@pytest.mark.parametrize("behind", [True, False], ids=["prompt cache", "no prompt cache"])
def test_a_slot_for_each_tenant(canary_gguf: Path, tmp_path: Path, behind: bool) -> None:
    """Slots are apart; the prompt cache behind them is not, unless it is off."""
    arguments = () if behind else _NO_PROMPT_CACHE
    name = "llama.cpp, id_slot" if behind else "llama.cpp, id_slot and --cache-ram 0"
    with (
        LlamaServer(model=canary_gguf, folder=tmp_path / "llama", arguments=arguments) as server,
        slot_for_each_key(server.url, _SLOT_OF) as url,
    ):
        device = audit(url, STOCK_KEYS, tmp_path / "device", *_PAIRS, record=f"{name}, device")
        host = audit_prompt_cache(
            server, url, STOCK_KEYS, tmp_path / "host", record=f"{name}, host"
        )
    # Two conversations of a tenant have one slot.
    assert largest_reuse(device, "S2") > _BY_CHANCE
    if behind:
        assert host.is_read_by_its_owner()
        assert_metadata(host, S2="VIOLATED", S3="VIOLATED", S5="VIOLATED")
        assert largest_reuse(host, "S3") > _BY_CHANCE
        return
    for audited in (device, host):
        for scope in ("S3", "S5"):
            assert largest_reuse(audited, scope) <= _BY_CHANCE
    # Nothing lies there: the owner finds nothing again, and so nothing is shown of others.
    assert not host.is_read_by_its_owner()
    assert host.code != 0


def largest_reuse(found: Audit, scope: str) -> int:
    return max(found.cached_tokens(scope), default=0)
