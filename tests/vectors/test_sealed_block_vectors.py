"""The vectors of the sealed block, opened by a second implementation written from its page."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kvward.canonical import encode
from kvward.errors import OpenError, ScopeMismatchError
from kvward.scope import SealKey, TokenKey
from kvward.scope.owner import verify_owner
from kvward.seal import BlockSealer, Lifetime

FOLDER = Path(__file__).parents[2] / "vectors"
SEALED = json.loads((FOLDER / "sealed-block-v1.json").read_text(encoding="utf-8"))
OWNER = json.loads((FOLDER / "owner-tag-v1.json").read_text(encoding="utf-8"))
SEAL_KEY = bytes.fromhex(SEALED["seal_key"])
TENANT_KEY = bytes.fromhex(SEALED["tenant_key"])
LAYOUT_DIGEST = bytes.fromhex(SEALED["layout_digest"])
PLACE = bytes.fromhex(SEALED["place"])
LIFETIME = Lifetime(
    oldest_unix_s=SEALED["now_unix_s"] - SEALED["max_age_s"],
    newest_unix_s=SEALED["now_unix_s"] + SEALED["clock_skew_s"],
)


def xaes_key(key: bytes, nonce: bytes) -> bytes:
    """Derive the key of a message, with the doubling spelled out."""

    def aes(block: bytes) -> bytes:
        encryptor = Cipher(AES(key), modes.ECB()).encryptor()
        return encryptor.update(block) + encryptor.finalize()

    number = int.from_bytes(aes(bytes(16)), "big") << 1
    if number >> 128:
        number = (number & (2**128 - 1)) ^ 0x87
    halves = []
    for counter in (1, 2):
        message = bytes([0, counter, 0x58, 0]) + nonce[:12]
        halves.append(aes((int.from_bytes(message, "big") ^ number).to_bytes(16, "big")))
    return b"".join(halves)


def open_by_the_page(sealed: bytes, place: bytes, layout_digest: bytes, size: int) -> bytes | None:
    """Open a block as docs/spec/sealed-block-v1.md says, or return None."""
    if len(sealed) < 80:
        return None
    magic, version, suite, reserved = struct.unpack(">4sBBH", sealed[:8])
    key_id, epoch, created, plain_bytes = struct.unpack(">8sQQQ", sealed[8:40])
    known = hmac.new(SEAL_KEY, encode("kvward/seal-key-id/v1"), hashlib.sha256).digest()[:8]
    if (magic, version, suite, reserved) != (b"kwsb", 1, 1, 0):
        return None
    if plain_bytes != len(sealed) - 80 or plain_bytes != size:
        return None
    if (epoch, key_id) != (SEALED["epoch"], known):
        return None
    if not LIFETIME.oldest_unix_s <= created <= LIFETIME.newest_unix_s:
        return None
    nonce = sealed[40:64]
    aad = encode("kvward/sealed-block/v1/xaes-256-gcm", sealed[:40], place, layout_digest)
    try:
        return AESGCM(xaes_key(SEAL_KEY, nonce)).decrypt(nonce[12:], sealed[64:], aad)
    except InvalidTag:
        return None


def open_by_the_package(
    sealed: bytes, place: bytes, layout_digest: bytes, size: int
) -> bytes | str:
    out = bytearray(b"\xff" * size)
    try:
        BlockSealer(SealKey(SEAL_KEY), epoch=SEALED["epoch"]).open_into(
            sealed, memoryview(out), name=place, layout_digest=layout_digest, lifetime=LIFETIME
        )
    except OpenError as exc:
        assert out == bytes(size)
        return exc.reason or ""
    return bytes(out)


@pytest.mark.parametrize("case", SEALED["must_open"], ids=lambda case: case["comment"])
def test_blocks_that_must_open_do(case: dict[str, Any]) -> None:
    sealed, plain = bytes.fromhex(case["sealed"]), bytes.fromhex(case["plaintext"])
    assert open_by_the_page(sealed, PLACE, LAYOUT_DIGEST, len(plain)) == plain
    assert open_by_the_package(sealed, PLACE, LAYOUT_DIGEST, len(plain)) == plain
    again = bytearray(len(sealed))
    BlockSealer(SealKey(SEAL_KEY), epoch=SEALED["epoch"]).seal_into(
        plain,
        memoryview(again),
        name=PLACE,
        layout_digest=LAYOUT_DIGEST,
        created_unix_s=case["created_unix_s"],
        nonce=bytes.fromhex(case["nonce"]),
    )
    assert bytes(again) == sealed


@pytest.mark.parametrize("case", SEALED["must_fail"], ids=lambda case: case["comment"])
def test_blocks_that_must_not_open_do_not(case: dict[str, Any]) -> None:
    asked = (
        bytes.fromhex(case["sealed"]),
        bytes.fromhex(case["place"]),
        bytes.fromhex(case["layout_digest"]),
        case["plain_bytes"],
    )
    assert open_by_the_page(*asked) is None
    assert open_by_the_package(*asked) == case["refused_by"]


def test_every_step_of_refusal_has_a_vector() -> None:
    from kvward.seal import OpenRefusal

    assert {case["refused_by"] for case in SEALED["must_fail"]} == set(OpenRefusal)


def test_place_and_layout_derive_as_the_page_says() -> None:
    def hkdf(info: bytes, length: int, key: bytes = TENANT_KEY) -> bytes:
        return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(key)

    scope_id = bytes.fromhex(SEALED["scope_id"])
    name_key = hkdf(encode("kvward/name-key/v1", scope_id, SEALED["epoch"]), 32)
    chain_hash = bytes.fromhex(SEALED["chain_hash"])
    layout = SEALED["layout"]
    part = (0, 0, 0, 0, layout["layers_of_stage"][0])
    name = hmac.new(name_key, encode("kvward/block-name/v1", chain_hash, *part), hashlib.sha256)
    tenant_id = bytes.fromhex(SEALED["tenant_id"])
    deployment_key = bytes.fromhex(SEALED["deployment_key"])
    buckets = hkdf(encode("kvward/tenant-bucket/v1", tenant_id), 16, deployment_key) + hkdf(
        encode("kvward/scope-bucket/v1", scope_id), 16
    )
    assert buckets + name.digest() == PLACE
    encoded = encode(
        "kvward/block-layout/v1",
        layout["order"],
        layout["dtype"],
        layout["block_tokens"],
        layout["num_planes"],
        layout["num_kv_heads"],
        layout["head_dim"],
        layout["tensor_ranks"],
        layout["layers_of_stage"],
        layout["num_kv_groups"],
    )
    assert hashlib.sha256(encoded).digest() == LAYOUT_DIGEST


@pytest.mark.parametrize("case", OWNER["valid"], ids=lambda case: case["comment"])
def test_owner_tags_verify(case: dict[str, Any]) -> None:
    key = TokenKey(bytes.fromhex(OWNER["token_key"]))
    owner = verify_owner(case["tag"], token=case["token"], token_key=key)
    assert owner.tenant_id.hex() == case["tenant_id"]
    assert owner.scope_id.hex() == case["scope_id"]
    assert str(owner.epoch) == case["epoch"]


@pytest.mark.parametrize("case", OWNER["must_fail"], ids=lambda case: case["comment"])
def test_owner_tags_that_must_fail_fail(case: dict[str, Any]) -> None:
    with pytest.raises(ScopeMismatchError):
        verify_owner(
            case["tag"], token=case["token"], token_key=TokenKey(bytes.fromhex(OWNER["token_key"]))
        )
