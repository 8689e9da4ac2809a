"""Only the operator's signature makes state of one manifest readable as another's."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvward.blocks.equivalence import (
    Equivalences,
    _signed_bytes,
    sign_equivalences,
    verify_equivalences,
)
from kvward.errors import ConfigError

OLD, NEW, OTHER = b"\xa1" * 32, b"\xb2" * 32, b"\xc3" * 32
SEED = bytes(range(32))
KEY = Ed25519PrivateKey.from_private_bytes(SEED).public_key().public_bytes_raw()
SIGNED = sign_equivalences({NEW: OLD}, SEED)


def changed(change: Callable[[dict[str, Any]], Any]) -> str:
    document = json.loads(SIGNED)
    change(document)
    return json.dumps(document)


def test_signed_list_leads_one_way_and_leaves_the_rest() -> None:
    equal = verify_equivalences(SIGNED, public_key=KEY)
    assert equal.resolve(NEW) == OLD
    assert equal.resolve(OLD) == OLD
    assert equal.resolve(OTHER) == OTHER
    assert Equivalences(read_as={}).resolve(NEW) == NEW


def test_several_may_read_as_one() -> None:
    text = sign_equivalences({NEW: OLD, OTHER: OLD}, SEED)
    equal = verify_equivalences(text, public_key=KEY)
    assert equal.resolve(NEW) == equal.resolve(OTHER) == OLD


@pytest.mark.parametrize(
    "text",
    [
        changed(lambda d: d.pop("signature")),
        changed(lambda d: d.update(signature="")),
        changed(lambda d: d.update(signature=None)),
        changed(lambda d: d.update(signature="!" + d["signature"][1:])),
        changed(lambda d: d.update(signature=base64.b64encode(bytes(64)).decode())),
        changed(lambda d: d.update(format="kvward-manifest-equivalence-2")),
        changed(lambda d: d.update(format=None)),
        changed(lambda d: d.update(more=1)),
        changed(lambda d: d.update(read_as={})),
        changed(lambda d: d.update(read_as=[])),
        changed(lambda d: d.update(read_as={OLD.hex(): NEW.hex()})),
        changed(lambda d: d["read_as"].update({OTHER.hex(): OLD.hex()})),
        changed(lambda d: d.update(read_as={NEW.hex().upper(): OLD.hex()})),
        changed(lambda d: d.update(read_as={NEW.hex(): " " + OLD.hex()})),
        SIGNED + "x",
        SIGNED + SIGNED,
        SIGNED[:-1],
        "",
        "null",
        "[]",
        '["format", "read_as", "signature"]',
        "[" * 100_000,
        '{"format": ' + "[" * 100_000,
    ],
)
def test_list_that_is_not_as_signed_says_nothing(text: str) -> None:
    with pytest.raises(ConfigError):
        verify_equivalences(text, public_key=KEY)


def test_list_of_another_key_says_nothing() -> None:
    with pytest.raises(ConfigError, match="another key") as caught:
        verify_equivalences(sign_equivalences({NEW: OLD}, bytes(32)), public_key=KEY)
    assert caught.value.hint
    for key in (b"", KEY[:31], KEY + b"\0"):
        with pytest.raises(ConfigError):
            verify_equivalences(SIGNED, public_key=key)


@pytest.mark.parametrize(
    "read_as",
    [{NEW: NEW}, {NEW: OLD, OLD: NEW}, {NEW: OLD, OLD: OTHER}, {OTHER: NEW, NEW: OLD}],
)
def test_circle_or_more_than_one_step_is_refused_by_signer_and_reader(
    read_as: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="more than one step"):
        sign_equivalences(read_as, SEED)
    with monkeypatch.context() as patch:
        patch.setattr("kvward.blocks.equivalence._check", lambda _: None)
        text = sign_equivalences(read_as, SEED)
    with pytest.raises(ConfigError, match="more than one step"):
        verify_equivalences(text, public_key=KEY)


def test_digest_that_is_not_full_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="32 bytes"):
        sign_equivalences({NEW[:16]: OLD}, SEED)
    with monkeypatch.context() as patch:
        patch.setattr("kvward.blocks.equivalence._check", lambda _: None)
        text = sign_equivalences({NEW: OLD[:31]}, SEED)
    with pytest.raises(ConfigError, match="32 bytes"):
        verify_equivalences(text, public_key=KEY)


def test_signature_of_another_document_of_the_same_key_does_not_count() -> None:
    private = Ed25519PrivateKey.from_private_bytes(SEED)
    for content in (b"", SIGNED.encode(), bytes(64)):
        signature = base64.b64encode(private.sign(content)).decode()
        with pytest.raises(ConfigError):
            verify_equivalences(
                changed(lambda d, s=signature: d.update(signature=s)), public_key=KEY
            )


def test_digest_has_one_spelling_even_when_signed() -> None:
    for spelled in (NEW.hex().upper(), NEW.hex() + " "):
        content = _signed_bytes([(spelled, OLD.hex())])
        signature = Ed25519PrivateKey.from_private_bytes(SEED).sign(content)
        document = {
            "format": "kvward-manifest-equivalence-1",
            "read_as": {spelled: OLD.hex()},
            "signature": base64.b64encode(signature).decode(),
        }
        with pytest.raises(ConfigError, match="spelled"):
            verify_equivalences(json.dumps(document), public_key=KEY)
