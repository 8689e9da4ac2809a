"""Vectors of block identity: manifests and what they are made of, chains of hashes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvward.blocks.chain import derive_chain_link, derive_chain_root
from kvward.blocks.config import digest_config, digest_template, digest_tokenizer
from kvward.blocks.equivalence import sign_equivalences
from kvward.blocks.files import digest_named_files
from kvward.blocks.inputs import (
    PromptInput,
    check_inputs,
    digest_audio,
    digest_embeddings,
    digest_image,
    digest_video,
    extras_of_block,
)
from kvward.blocks.manifest import (
    AdapterIdentity,
    ModelManifest,
    ParallelShape,
    WeightsIdentity,
    WeightsKind,
)

ROTARY = (
    '{"rope_theta": 500000.0, "rope_scaling": {"factor": %.1f, "rope_type": "llama3"}, '
    '"sliding_window": null}'
)
CONFIGS: list[tuple[str, str]] = [
    ("empty", "{}"),
    ("one as an integer", '{"a": 1}'),
    ("one as a float", '{"a": 1.0}'),
    ("true", '{"a": true}'),
    ("one as text", '{"a": "1"}'),
    ("null is not a missing key", '{"a": null}'),
    ("zero", '{"a": 0.0}'),
    ("negative zero", '{"a": -0.0}'),
    ("empty list", '{"a": []}'),
    ("empty mapping", '{"a": {}}'),
    ("keys in one order", '{"a": 1, "b": [1, 2]}'),
    ("keys in the other order", '{"b": [1, 2], "a": 1}'),
    ("list in another order", '{"a": 1, "b": [2, 1]}'),
    ("keys sort by code point", '{"é": 1, "z": 2, "Z": 3, "日": 4}'),
    ("rotary scaling", ROTARY % 8),
    ("other rotary scaling", ROTARY % 4),
]


def _digest(number: int) -> bytes:
    return hashlib.sha256(bytes([number])).digest()


BASE = ModelManifest(
    weights=WeightsIdentity(kind=WeightsKind.FULL_HASH, digest=_digest(0)),
    configuration=_digest(1),
    tokenizer=_digest(2),
    chat_template=_digest(3),
    dtype="bfloat16",
    kv_dtype="bfloat16",
    kv_scales=None,
    quantisation=None,
    attention="paged, token,head,channel",
    block_tokens=16,
    parallel=ParallelShape(tensor=2, pipeline=1, context=1, expert=1),
    engine="an engine",
    engine_version="1.2.3",
    adapter=None,
)
MANIFESTS: list[tuple[str, ModelManifest]] = [
    ("base model", BASE),
    ("weights known by an index", replace(BASE, weights=WeightsIdentity(
        kind=WeightsKind.INDEX, digest=_digest(0)))),
    ("weights known by a commit", replace(BASE, weights=WeightsIdentity.from_revision("a" * 40))),
    ("no chat template", replace(BASE, chat_template=None)),
    ("empty chat template", replace(BASE, chat_template=digest_template(""))),
    ("tokenizer and configuration exchanged",
     replace(BASE, configuration=_digest(2), tokenizer=_digest(1))),
    ("quantised cache", replace(BASE, kv_dtype="float8_e4m3", kv_scales=_digest(4))),
    ("quantised weights", replace(BASE, quantisation="awq 4 bits, groups of 128")),
    ("other block size", replace(BASE, block_tokens=32)),
    ("other parallel shape",
     replace(BASE, parallel=ParallelShape(tensor=1, pipeline=2, context=1, expert=1))),
    ("upgrade of the engine", replace(BASE, engine_version="1.2.4")),
    ("adapter", replace(BASE, adapter=AdapterIdentity(digest=_digest(5), scaling="2.0"))),
    ("adapter with other bytes",
     replace(BASE, adapter=AdapterIdentity(digest=_digest(6), scaling="2.0"))),
    ("adapter with other scaling",
     replace(BASE, adapter=AdapterIdentity(digest=_digest(5), scaling="1.0"))),
]  # fmt: skip


def _hex(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _hex(item) for key, item in value.items()}
    return value


def _numbered(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": number} | case for number, case in enumerate(cases, start=1)]


def manifest_vectors() -> dict[str, Any]:
    files = [("a.safetensors", b"aaaa"), ("sub/b.safetensors", b"bb")]
    parts = {"tokenizer.json": b"{}", "bos_token": b"<s>"}
    seed = bytes(range(32))
    read_as = {MANIFESTS[10][1].digest(): BASE.digest()}
    return {
        "format": "kvward model manifest v1",
        "configurations": _numbered(
            [
                {"comment": comment, "json": text, "digest": digest_config(json.loads(text)).hex()}
                for comment, text in CONFIGS
            ]
        ),
        "templates": [
            {"text": text, "digest": _hex(digest_template(text))} for text in (None, "", "{{ x }}")
        ],
        "tokenizer": {"parts": _hex(parts), "digest": digest_tokenizer(parts).hex()},
        "files": {
            "contents": {name: content.hex() for name, content in files},
            "digest": digest_named_files(
                (name, len(content), hashlib.sha256(content).digest()) for name, content in files
            ).hex(),
        },
        "revision": {
            "commit": "a" * 40,
            "digest": WeightsIdentity.from_revision("a" * 40).digest.hex(),
        },
        "manifests": _numbered(
            [
                {
                    "comment": comment,
                    "manifest": _hex(asdict(manifest)),
                    "digest": manifest.digest().hex(),
                }
                for comment, manifest in MANIFESTS
            ]
        ),
        "equivalence": {
            "comment": "the upgrade may use what the base model stored",
            "public_key": Ed25519PrivateKey.from_private_bytes(seed)
            .public_key()
            .public_bytes_raw()
            .hex(),
            "document": sign_equivalences(read_as, seed),
        },
    }


def _input_digests() -> list[dict[str, Any]]:
    content, processor = bytes(range(24)), _digest(7)
    cases: list[tuple[str, str, dict[str, Any], bytes]] = []
    for comment, width, height, mode in [
        ("image", 6, 4, "L"), ("image on its side", 4, 6, "L"), ("image in colour", 4, 2, "RGB"),
    ]:  # fmt: skip
        form: dict[str, Any] = {"width": width, "height": height, "mode": mode}
        digest = digest_image(content, **form, processor=processor)
        cases.append((comment, "image", form | {"processor": processor}, digest))
    form = {"rate_hz": 16000, "channels": 1, "dtype": "int16"}
    digest = digest_audio(content, **form, processor=processor)
    cases.append(("sound", "audio", form | {"processor": processor}, digest))
    for comment, mask in [("embeddings", None), ("embeddings with a mask", b"\1\0\1")]:
        form = {"shape": [3, 2], "dtype": "float32", "mask": mask}
        digest = digest_embeddings(content, **form)
        cases.append((comment, "embeddings", form, digest))
    rows = [
        {"comment": comment, "kind": kind, "content": content.hex(), "form": _hex(form),
         "digest": digest.hex()}
        for comment, kind, form, digest in cases
    ]  # fmt: skip
    frames = [cases[0][3], cases[1][3]]
    video = {"comment": "video", "kind": "video", "frames": [f.hex() for f in frames]}
    return [*rows, video | {"times_ms": [0, 40],
                            "digest": digest_video(frames, times_ms=[0, 40]).hex()}]  # fmt: skip


def chain_vectors() -> dict[str, Any]:
    block_tokens, manifest = 4, BASE.digest()
    image = PromptInput(kind="image", digest=_digest(8), first_token=2, num_tokens=8)
    text, media = list(range(12)), [1, 2, *([99] * 8), 3, 4]
    cases: list[tuple[str, bytes, str | None, list[int], list[PromptInput]]] = [
        ("without a scope, as under a sealed name", manifest, None, text, []),
        ("empty scope is not none", manifest, "", text, []),
        ("under a scope", manifest, "kw1.scope.0.mac", text, []),
        ("other model", MANIFESTS[10][1].digest(), "kw1.scope.0.mac", text, []),
        ("first token differs", manifest, None, [2**32 - 1, *text[1:]], []),
        ("placeholders without an image", manifest, None, media, []),
        ("image", manifest, None, media, [image]),
        ("other image", manifest, None, media, [replace(image, digest=_digest(9))]),
        ("image one token later", manifest, None, media, [replace(image, first_token=3)]),
        ("image one token shorter", manifest, None, media, [replace(image, num_tokens=7)]),
        ("same digest, other kind", manifest, None, media, [replace(image, kind="video")]),
    ]  # fmt: skip
    tests = []
    for comment, digest, scope, tokens, inputs in cases:
        checked = check_inputs(inputs, num_tokens=len(tokens))
        parent = root = derive_chain_root(manifest_digest=digest, scope=scope)
        links = []
        for begin in range(0, len(tokens), block_tokens):
            extras = extras_of_block(checked.inputs, first_token=begin, block_tokens=block_tokens)
            parent = derive_chain_link(parent, tokens[begin : begin + block_tokens], extras=extras)
            links.append(parent.hex())
        tests.append(
            {
                "comment": comment,
                "manifest_digest": digest.hex(),
                "scope": scope,
                "token_ids": tokens,
                "inputs": [_hex(asdict(given)) for given in inputs],
                "root": root.hex(),
                "links": links,
            }
        )
    return {
        "format": "kvward block chain v1",
        "block_tokens": block_tokens,
        "inputs": _numbered(_input_digests()),
        "tests": _numbered(tests),
    }
