"""The vectors of block identity, recomputed by a second implementation written from its page."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kvward.blocks.equivalence import verify_equivalences
from kvward.canonical import encode

FOLDER = Path(__file__).parents[2] / "vectors"
MANIFEST = json.loads((FOLDER / "manifest-v1.json").read_text(encoding="utf-8"))
CHAIN = json.loads((FOLDER / "chain-v1.json").read_text(encoding="utf-8"))
DIGESTS = {"digest", "configuration", "tokenizer", "chat_template", "kv_scales"}
ORDER = [
    "weights",
    "configuration",
    "tokenizer",
    "chat_template",
    "dtype",
    "kv_dtype",
    "kv_scales",
    "quantisation",
    "attention",
    "block_tokens",
    "parallel",
    "engine",
    "engine_version",
    "adapter",
]
INNER = {
    "weights": ["kind", "digest"],
    "parallel": ["tensor", "pipeline", "context", "expert"],
    "adapter": ["digest", "scaling"],
}


def sha(label: str, *fields: Any) -> str:
    return hashlib.sha256(encode(label, *fields)).hexdigest()


def config_value(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, list):
        return ["list"] + [config_value(item) for item in value]
    if isinstance(value, dict):
        return ["mapping"] + [[key, config_value(value[key])] for key in sorted(value)]
    return value


def pairs(values: dict[str, Any], order: list[str]) -> list[Any]:
    fields = []
    for name in order:
        value = values[name]
        if isinstance(value, dict):
            value = pairs(value, INNER[name])
        elif name in DIGESTS and value is not None:
            value = bytes.fromhex(value)
        fields.append([name, value])
    return fields


def by_comment(case: dict[str, Any]) -> str:
    return str(case["comment"])


@pytest.mark.parametrize("case", MANIFEST["configurations"], ids=by_comment)
def test_configuration_matches_its_vector(case: dict[str, Any]) -> None:
    value = config_value(json.loads(case["json"]))
    assert sha("kvward/model-config/v1", value) == case["digest"]


def test_configurations_of_the_vectors_differ_except_in_the_order_of_keys() -> None:
    digests = {case["comment"]: case["digest"] for case in MANIFEST["configurations"]}
    assert digests["keys in one order"] == digests.pop("keys in the other order")
    assert len(set(digests.values())) == len(digests) >= 15


def test_parts_of_a_manifest_match_their_vectors() -> None:
    for case in MANIFEST["templates"]:
        text = case["text"]
        made = None if text is None else sha("kvward/chat-template/v1", text)
        assert made == case["digest"]
    tokenizer = MANIFEST["tokenizer"]
    parts = sorted((name, bytes.fromhex(content)) for name, content in tokenizer["parts"].items())
    hashed = [[name, hashlib.sha256(content).digest()] for name, content in parts]
    assert sha("kvward/tokenizer/v1", *hashed) == tokenizer["digest"]
    contents = MANIFEST["files"]["contents"].items()
    files = [
        [name, len(content), hashlib.sha256(content).digest()]
        for name, content in sorted((name, bytes.fromhex(text)) for name, text in contents)
    ]
    assert sha("kvward/files/v1", files) == MANIFEST["files"]["digest"]
    revision = MANIFEST["revision"]
    assert sha("kvward/weights-revision/v1", revision["commit"]) == revision["digest"]


@pytest.mark.parametrize("case", MANIFEST["manifests"], ids=by_comment)
def test_manifest_matches_its_vector(case: dict[str, Any]) -> None:
    assert set(case["manifest"]) == set(ORDER)
    fields = pairs(case["manifest"], ORDER)
    assert sha("kvward/model-manifest/v1", *fields) == case["digest"]


def test_manifests_of_the_vectors_all_differ() -> None:
    digests = {case["digest"] for case in MANIFEST["manifests"]}
    assert len(digests) == len(MANIFEST["manifests"]) >= 14


def test_equivalence_matches_its_vector() -> None:
    case = MANIFEST["equivalence"]
    document, key = json.loads(case["document"]), bytes.fromhex(case["public_key"])
    listed = [[one, two] for one, two in sorted(document["read_as"].items())]
    signed = encode("kvward/manifest-equivalence/v1", document["format"], listed)
    signature = base64.b64decode(document["signature"])
    Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    known = {case["comment"]: case["digest"] for case in MANIFEST["manifests"]}
    assert listed == [[known["upgrade of the engine"], known["base model"]]]
    equal = verify_equivalences(case["document"], public_key=key)
    assert equal.resolve(bytes.fromhex(listed[0][0])).hex() == known["base model"]


@pytest.mark.parametrize("case", CHAIN["inputs"], ids=by_comment)
def test_digest_of_an_input_matches_its_vector(case: dict[str, Any]) -> None:
    label, form = f"kvward/input/{case['kind']}/v1", case.get("form")
    content = bytes.fromhex(case.get("content", ""))
    if case["kind"] == "video":
        frames = [bytes.fromhex(frame) for frame in case["frames"]]
        made = sha(label, frames, case["times_ms"])
    elif case["kind"] == "embeddings":
        mask = None if form["mask"] is None else bytes.fromhex(form["mask"])
        made = sha(label, form["shape"], form["dtype"], mask, content)
    else:
        names = {"image": ["width", "height", "mode"], "audio": ["rate_hz", "channels", "dtype"]}
        values = [form[name] for name in names[case["kind"]]]
        made = sha(label, *values, bytes.fromhex(form["processor"]), content)
    assert made == case["digest"]


@pytest.mark.parametrize("case", CHAIN["tests"], ids=by_comment)
def test_chain_matches_its_vector(case: dict[str, Any]) -> None:
    size, tokens = CHAIN["block_tokens"], case["token_ids"]
    parent = sha("kvward/chain-root/v1", bytes.fromhex(case["manifest_digest"]), case["scope"])
    assert parent == case["root"]
    for begin, link in zip(range(0, len(tokens), size), case["links"], strict=True):
        extras = []
        for given in case["inputs"]:
            first, num = given["first_token"], given["num_tokens"]
            inside = [t for t in range(first, first + num) if begin <= t < begin + size]
            if inside:
                extras.append([given["kind"], bytes.fromhex(given["digest"]), inside[0] - begin,
                               inside[0] - first, len(inside), num])  # fmt: skip
        packed = b"".join(token.to_bytes(4, "big") for token in tokens[begin : begin + size])
        parent = sha("kvward/chain-link/v1", bytes.fromhex(parent), packed, extras)
        assert parent == link


def test_chains_of_the_vectors_meet_nowhere() -> None:
    ends = {case["links"][-1] for case in CHAIN["tests"]}
    assert len(ends) == len(CHAIN["tests"])


def test_inputs_of_the_vectors_all_differ() -> None:
    assert len({case["digest"] for case in CHAIN["inputs"]}) == len(CHAIN["inputs"])
