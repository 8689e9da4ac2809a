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
    assert_content_not_observed,
    assert_metadata,
    audit,
)
from engines.canary_gguf import write_canary_gguf
from engines.conftest import make_ward, open_gateway
from engines.llama_server import SLOTS, LlamaServer, slot_for_each_key
from kvward.cli.process import ServerProcess

pytestmark = [pytest.mark.timeout(3600), pytest.mark.llamacpp]

_PRESET = ("--preset", "llamacpp")
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
        url, keys, folder / "report", *_PRESET, "--cache-tier", "host",
        "--controls", str(controls), record=record,
    )  # fmt: skip


def test_llamacpp_shares_its_slots(canary_gguf: Path, tmp_path: Path) -> None:
    with LlamaServer(model=canary_gguf, folder=tmp_path / "llama") as server:
        found = audit(server.url, STOCK_KEYS, tmp_path / "device", record="llama.cpp, bare, device")
        assert found.report["plan"]["preset"] == "llamacpp"  # it was recognised
        behind = audit_prompt_cache(
            server, server.url, STOCK_KEYS, tmp_path / "host", record="llama.cpp, bare, host"
        )
    for audited in (found, behind):
        assert audited.code == 1
        assert audited.is_read_by_its_owner()
        assert_metadata(audited, S0="NOT_OBSERVED", S2="VIOLATED", S3="VIOLATED")
    assert_content_not_observed(found)


def test_a_salt_parts_nobody_at_llamacpp(
    canary_gguf: Path, tmp_path: Path, gateways: list[ServerProcess]
) -> None:
    """The gateway sets a salt, and llama.cpp does not know the field."""
    ward = make_ward(tmp_path / "ward", keep=False)
    with LlamaServer(model=canary_gguf, folder=tmp_path / "llama") as server:
        gateway = open_gateway(gateways, ward, server.url, log=tmp_path / "gateway.log")
        found = audit(
            gateway.url, ward.keys, tmp_path / "device", *_PRESET,
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
        device = audit(url, STOCK_KEYS, tmp_path / "device", *_PRESET, record=f"{name}, device")
        host = audit_prompt_cache(
            server, url, STOCK_KEYS, tmp_path / "host", record=f"{name}, host"
        )
    assert device.is_read_by_its_owner()
    # Two conversations of a tenant have one slot.
    assert_metadata(device, S2="VIOLATED", S3="NOT_OBSERVED", S5="NOT_OBSERVED")
    if behind:
        assert host.is_read_by_its_owner()
        assert_metadata(host, S2="VIOLATED", S3="VIOLATED", S5="VIOLATED")
    else:
        # Nothing lies there: the owner finds nothing again, and the audit does not hold.
        assert not host.is_read_by_its_owner()
        assert host.code == 2
