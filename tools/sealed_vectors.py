"""Vectors of the sealed block: what must open, what must not, and which step refuses it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvward.blocks.layout import BlockLayout
from kvward.errors import OpenError
from kvward.scope import DeploymentKey, NameKey, SealKey, TenantKey
from kvward.scope.derive import (
    derive_block_name,
    derive_name_key,
    derive_scope_bucket,
    derive_tenant_bucket,
)
from kvward.seal import OVERHEAD_BYTES, BlockSealer, Lifetime, OpenRefusal

TENANT_KEY = TenantKey(bytes(range(32)))
DEPLOYMENT_KEY = DeploymentKey(bytes(range(96, 128)))
TENANT_ID = bytes(range(200, 224))
SEAL_KEY = SealKey(bytes(range(64, 96)))
SCOPE_ID = bytes(range(128, 152))
EPOCH = 7
CHAIN_HASH = bytes(range(32, 64))
NOW = 1_790_000_000
MAX_AGE_S, SKEW_S = 3600, 5
LAYOUT = BlockLayout(
    order="layer,plane,token,head,channel",
    dtype="float16",
    block_tokens=2,
    num_planes=2,
    num_kv_heads=2,
    head_dim=3,
    tensor_ranks=1,
    layers_of_stage=(2,),
    num_kv_groups=1,
)
LIFETIME = Lifetime(oldest_unix_s=NOW - MAX_AGE_S, newest_unix_s=NOW + SKEW_S)


def _place(name_key: NameKey, chain_hash: bytes, scope_id: bytes = SCOPE_ID) -> bytes:
    part = LAYOUT.parts[0]
    return (
        derive_tenant_bucket(DEPLOYMENT_KEY, tenant_id=TENANT_ID)
        + derive_scope_bucket(TENANT_KEY, scope_id)
        + derive_block_name(name_key, chain_hash, *part.to_fields())
    )


def _seal(plain: bytes, *, place: bytes, created: int, nonce: bytes, epoch: int = EPOCH) -> bytes:
    out = bytearray(len(plain) + OVERHEAD_BYTES)
    BlockSealer(SEAL_KEY, epoch=epoch).seal_into(
        plain,
        memoryview(out),
        name=place,
        layout_digest=LAYOUT.digest,
        created_unix_s=created,
        nonce=nonce,
    )
    return bytes(out)


def _refusal(sealed: bytes, place: bytes, layout_digest: bytes, size: int) -> str | None:
    try:
        BlockSealer(SEAL_KEY, epoch=EPOCH).open_into(
            sealed,
            memoryview(bytearray(size)),
            name=place,
            layout_digest=layout_digest,
            lifetime=LIFETIME,
        )
    except OpenError as exc:
        return exc.reason
    return None


def sealed_block_vectors() -> dict[str, Any]:
    """Return all vectors of the sealed block."""
    name_key = derive_name_key(TENANT_KEY, scope_id=SCOPE_ID, epoch=EPOCH)
    place = _place(name_key, CHAIN_HASH)
    size = LAYOUT.block_bytes
    plain = bytes(number % 251 for number in range(size))
    valid = [
        ("sealed now", plain, NOW),
        ("as old as may be", plain, NOW - MAX_AGE_S),
        ("from a clock that is as far ahead as may be", plain, NOW + SKEW_S),
        ("zeros", bytes(size), NOW),
        ("empty plaintext", b"", NOW),
    ]
    opened = []
    for number, (comment, content, created) in enumerate(valid, start=1):
        nonce = bytes([number]) * 24
        sealed = _seal(content, place=place, created=created, nonce=nonce)
        assert _refusal(sealed, place, LAYOUT.digest, len(content)) is None
        opened.append(
            {
                "id": number,
                "comment": comment,
                "created_unix_s": created,
                "nonce": nonce.hex(),
                "plaintext": content.hex(),
                "sealed": sealed.hex(),
            }
        )
    good = _seal(plain, place=place, created=NOW, nonce=b"\x01" * 24)
    other_scope = bytes(24)
    other_name_key = derive_name_key(TENANT_KEY, scope_id=other_scope, epoch=EPOCH)
    next_name_key = derive_name_key(TENANT_KEY, scope_id=SCOPE_ID, epoch=EPOCH + 1)

    def changed(at: int, *values: int) -> bytes:
        return good[:at] + bytes(values) + good[at + len(values) :]

    r = OpenRefusal
    cases: list[tuple[str, bytes, bytes, bytes, int, OpenRefusal]] = [
        (comment, sealed, place, LAYOUT.digest, size, reason)
        for comment, sealed, reason in [
            ("empty", b"", r.TOO_SHORT),
            ("one byte short of header and tag", good[: OVERHEAD_BYTES - 1], r.TOO_SHORT),
            ("other magic", changed(0, 0x4B), r.NOT_A_BLOCK),
            ("version 0", changed(4, 0), r.VERSION),
            ("version 2", changed(4, 2), r.VERSION),
            ("suite 0", changed(5, 0), r.SUITE),
            ("suite 2", changed(5, 2), r.SUITE),
            ("reserved bytes set", changed(6, 0, 1), r.RESERVED),
            ("key id changed", changed(8, good[8] ^ 1), r.KEY),
            ("epoch changed", changed(23, EPOCH + 1), r.EPOCH),
            ("created one second later than sealed", changed(31, good[31] ^ 1), r.NOT_AUTHENTIC),
            ("last byte cut", good[:-1], r.LENGTH),
            ("last byte cut, length mended", changed(39, good[39] - 1)[:-1], r.LENGTH),
            ("one byte more", good + b"\0", r.LENGTH),
            ("nonce changed", changed(40, good[40] ^ 1), r.NOT_AUTHENTIC),
            ("second half of the nonce changed", changed(52, good[52] ^ 1), r.NOT_AUTHENTIC),
            ("first byte of the ciphertext changed", changed(64, good[64] ^ 1), r.NOT_AUTHENTIC),
            ("last bit of the tag changed", good[:-1] + bytes([good[-1] ^ 1]), r.NOT_AUTHENTIC),
            (
                "a second past its age",
                _seal(plain, place=place, created=NOW - MAX_AGE_S - 1, nonce=b"\x02" * 24),
                r.EXPIRED,
            ),
            (
                "a second too far in the future",
                _seal(plain, place=place, created=NOW + SKEW_S + 1, nonce=b"\x03" * 24),
                r.FROM_THE_FUTURE,
            ),
            (
                "sealed in another epoch",
                _seal(plain, place=place, created=NOW, nonce=b"\x04" * 24, epoch=EPOCH + 1),
                r.EPOCH,
            ),
        ]
    ]
    cases += [
        (comment, good, where, LAYOUT.digest, size, r.NOT_AUTHENTIC)
        for comment, where in [
            ("read under another block's name", _place(name_key, bytes(32))),
            ("read in another scope", _place(other_name_key, CHAIN_HASH, other_scope)),
            ("read under the next epoch's name", _place(next_name_key, CHAIN_HASH)),
            ("read in another tenant's bucket", bytes(16) + place[16:]),
        ]
    ]
    cases.append(
        ("read for another layout", good, place, bytes(32), size, r.NOT_AUTHENTIC),
    )
    cases.append(("read for a shorter block", good, place, LAYOUT.digest, size - 1, r.LENGTH))
    must_fail = []
    for number, (comment, sealed, where, digest, length, reason) in enumerate(cases, start=1):
        found = _refusal(sealed, where, digest, length)
        assert found == reason, (comment, found)
        must_fail.append(
            {
                "id": number,
                "comment": comment,
                "sealed": sealed.hex(),
                "place": where.hex(),
                "layout_digest": digest.hex(),
                "plain_bytes": length,
                "refused_by": reason.value,
            }
        )
    return {
        "format": "kvward sealed block v1",
        "deployment_key": DEPLOYMENT_KEY.reveal().hex(),
        "tenant_id": TENANT_ID.hex(),
        "tenant_key": TENANT_KEY.reveal().hex(),
        "seal_key": SEAL_KEY.reveal().hex(),
        "scope_id": SCOPE_ID.hex(),
        "epoch": EPOCH,
        "chain_hash": CHAIN_HASH.hex(),
        "layout": asdict(LAYOUT),
        "layout_digest": LAYOUT.digest.hex(),
        "place": place.hex(),
        "now_unix_s": NOW,
        "max_age_s": MAX_AGE_S,
        "clock_skew_s": SKEW_S,
        "must_open": opened,
        "must_fail": must_fail,
    }
