"""What `kvward audit` says of vLLM as it comes, and with its own connector to a disk.

The canary model stands in for real weights, so that content and differential are read, too. What
lies on disk is asked for behind a restart, which empties the engine's own memory.
"""

from __future__ import annotations

import json
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
from engines.vllm_server import VllmServer
from kvward.cli.process import ServerProcess

pytestmark = [pytest.mark.timeout(3600), pytest.mark.vllm]


def test_stock_vllm_shows_reuse_to_everybody_and_content_to_nobody(
    canary: Path, tmp_path: Path
) -> None:
    with VllmServer(model=canary, folder=tmp_path / "vllm") as server:
        found = audit(server.url, STOCK_KEYS, tmp_path / "device", record="vllm, bare, device")
    assert found.code == 1
    assert found.tiers() == {"device"}
    assert found.is_read_by_its_owner()
    # Without salts everybody is one scope: conversations of a tenant are, too.
    assert_metadata(found, S0="NOT_OBSERVED", S2="VIOLATED", S3="VIOLATED", S5="VIOLATED")
    assert_content_not_observed(found)


def test_example_connector_gives_disk_to_every_salt(
    canary: Path, tmp_path: Path, gateways: list[ServerProcess]
) -> None:
    """The gateway's salts part the device, and the disk behind it is one scope for all."""
    ward = make_ward(tmp_path / "ward", keep=False)
    with VllmServer(
        model=canary, folder=tmp_path / "vllm", arguments=example_connector(tmp_path / "disk")
    ) as server:
        gateway = open_gateway(gateways, ward, server.url, log=tmp_path / "gateway.log")
        disk = audit_behind_restart(
            server.restart, gateway.url, ward.keys, tmp_path / "behind",
            record="vllm and ExampleConnector, gateway, disk",
        )  # fmt: skip
        # Without the load under which content is read: a repeated prompt of one token more than
        # a multiple of the block size makes this connector count below zero, and vLLM ends.
        device = audit(
            gateway.url, ward.keys, tmp_path / "device", "--channel", "metadata",
            record="vllm and ExampleConnector, gateway, device",
        )  # fmt: skip
    assert disk.code == 1
    assert disk.tiers() == {"disk"}
    assert disk.is_read_by_its_owner()
    assert_metadata(disk, S0="NOT_OBSERVED", S2="VIOLATED", S3="VIOLATED", S5="VIOLATED")
    # Without a restart a look-up asks the device and then the disk, so the salts no longer help.
    assert_metadata(device, S0="NOT_OBSERVED", S2="VIOLATED", S3="VIOLATED", S5="VIOLATED")


def example_connector(folder: Path) -> list[str]:
    transfer = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    return ["--kv-transfer-config", json.dumps(transfer)]
