"""Nothing that changes keys and values is missing from the manifest."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.blocks.config import digest_config, digest_template, digest_tokenizer
from kvward.blocks.manifest import (
    AdapterIdentity,
    ModelManifest,
    ParallelShape,
    WeightsIdentity,
    WeightsKind,
)
from kvward.errors import UsageError

ONE, TWO = b"\x01" * 32, b"\x02" * 32
ADAPTER = AdapterIdentity(digest=ONE, scaling="2.0")
MANIFEST = ModelManifest(
    weights=WeightsIdentity(kind=WeightsKind.FULL_HASH, digest=ONE),
    configuration=ONE,
    tokenizer=ONE,
    chat_template=ONE,
    dtype="bfloat16",
    kv_dtype="float8_e4m3",
    kv_scales=ONE,
    quantisation="awq 4 bits, groups of 128",
    attention="flash 3, token,head,channel",
    block_tokens=16,
    parallel=ParallelShape(tensor=2, pipeline=1, context=1, expert=1),
    engine="an engine",
    engine_version="1.2.3",
    adapter=ADAPTER,
)
# Every field of every type, with other values than those above: a new field without a line here
# fails the test of its type.
CHANGED: dict[type, dict[str, list[Any]]] = {
    ModelManifest: {
        "weights": [WeightsIdentity(kind=WeightsKind.FULL_HASH, digest=TWO)],
        "configuration": [TWO],
        "tokenizer": [TWO],
        "chat_template": [TWO, None, digest_template("")],
        "dtype": ["float16", "float32"],
        "kv_dtype": ["float8_e5m2", "int8"],
        "kv_scales": [TWO],
        "quantisation": [None, "awq 8 bits, groups of 128"],
        "attention": ["flash 3, head,token,channel"],
        "block_tokens": [15, 32],
        "parallel": [ParallelShape(tensor=1, pipeline=2, context=1, expert=1)],
        "engine": ["another engine"],
        "engine_version": ["1.2.4"],
        "adapter": [None, AdapterIdentity(digest=TWO, scaling="2.0")],
    },
    WeightsIdentity: {"kind": [WeightsKind.INDEX, WeightsKind.REVISION], "digest": [TWO]},
    AdapterIdentity: {"digest": [TWO], "scaling": ["1.0", ""]},
    ParallelShape: {name: [3] for name in ("tensor", "pipeline", "context", "expert")},
}
HOLDER = {WeightsIdentity: "weights", AdapterIdentity: "adapter", ParallelShape: "parallel"}


def variants(kind: type) -> list[ModelManifest]:
    found = []
    for name, values in CHANGED[kind].items():
        for value in values:
            if kind is ModelManifest:
                found.append(replace(MANIFEST, **{name: value}))
            else:
                inner = replace(getattr(MANIFEST, HOLDER[kind]), **{name: value})
                found.append(replace(MANIFEST, **{HOLDER[kind]: inner}))
    return found


@pytest.mark.parametrize("kind", CHANGED, ids=lambda kind: kind.__name__)
def test_every_field_changes_the_digest(kind: type) -> None:
    assert set(CHANGED[kind]) == {field.name for field in fields(kind)}
    digests = [manifest.digest() for manifest in [MANIFEST, *variants(kind)]]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 32 for digest in digests)


def test_every_type_inside_the_manifest_is_covered() -> None:
    inside = {type(getattr(MANIFEST, field.name)) for field in fields(MANIFEST)}
    assert {kind for kind in inside if kind not in (bytes, str, int)} == set(HOLDER)


@pytest.mark.parametrize("kind", CHANGED, ids=lambda kind: kind.__name__)
def test_nothing_has_a_default(kind: type) -> None:
    value = MANIFEST if kind is ModelManifest else getattr(MANIFEST, HOLDER[kind])
    given_all = {field.name: getattr(value, field.name) for field in fields(kind)}
    for name in given_all:
        with pytest.raises(TypeError):
            kind(**{key: other for key, other in given_all.items() if key != name})


def test_equal_manifests_have_one_digest_on_every_rank() -> None:
    assert replace(MANIFEST).digest() == MANIFEST.digest()
    names = {field.name for kind in CHANGED for field in fields(kind)}
    assert not {name for name in names if "rank" in name}


def test_one_meaning_never_passes_for_another() -> None:
    """K-ENCODE: the same words in another place are another manifest."""
    pairs = [
        (replace(MANIFEST, engine="ab", engine_version="c"),
         replace(MANIFEST, engine="a", engine_version="bc")),
        (replace(MANIFEST, engine="x", attention="y"),
         replace(MANIFEST, engine="y", attention="x")),
        (replace(MANIFEST, tokenizer=ONE, configuration=TWO),
         replace(MANIFEST, tokenizer=TWO, configuration=ONE)),
        (replace(MANIFEST, chat_template=None, tokenizer=TWO),
         replace(MANIFEST, chat_template=TWO, tokenizer=ONE)),
        (replace(MANIFEST, quantisation="fp8", adapter=None),
         replace(MANIFEST, quantisation=None, adapter=AdapterIdentity(digest=ONE, scaling="fp8"))),
        (replace(MANIFEST, parallel=ParallelShape(tensor=1, pipeline=12, context=1, expert=1)),
         replace(MANIFEST, parallel=ParallelShape(tensor=11, pipeline=2, context=1, expert=1))),
    ]  # fmt: skip
    for one, two in pairs:
        assert one.digest() != two.digest()


@pytest.mark.parametrize("value", ["auto", "AUTO", " auto ", "default", "none", "", " "])
@pytest.mark.parametrize(
    "name", ["dtype", "kv_dtype", "quantisation", "attention", "engine", "engine_version"]
)
def test_value_that_an_engine_would_choose_is_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        replace(MANIFEST, **{name: value})
    assert caught.value.hint


def test_quantised_cache_needs_its_scales_and_others_have_none() -> None:
    with pytest.raises(UsageError, match="scales") as caught:
        replace(MANIFEST, kv_scales=None)
    assert caught.value.hint
    for dtype in ("float32", "float16", "bfloat16"):
        with pytest.raises(UsageError, match="scales"):
            replace(MANIFEST, kv_dtype=dtype)
        replace(MANIFEST, kv_dtype=dtype, kv_scales=None)


@pytest.mark.parametrize("digest", [b"", b"\1" * 31, b"\1" * 33, "\1" * 32])
def test_digest_that_is_not_full_is_refused(digest: bytes) -> None:
    for name in ("configuration", "tokenizer", "chat_template", "kv_scales"):
        with pytest.raises(ValueError, match="32 bytes"):
            replace(MANIFEST, **{name: digest})
    with pytest.raises(ValueError, match="32 bytes"):
        WeightsIdentity(kind=WeightsKind.INDEX, digest=digest)
    with pytest.raises(ValueError, match="32 bytes"):
        AdapterIdentity(digest=digest, scaling="1")


@pytest.mark.parametrize("count", [0, -1, True, 1.0, "1"])
def test_count_that_is_none_is_refused(count: Any) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        replace(MANIFEST, block_tokens=count)
    for field in fields(ParallelShape):
        with pytest.raises(ValueError, match="at least 1"):
            replace(MANIFEST.parallel, **{field.name: count})


@pytest.mark.parametrize("name", ["main", "latest", "v1.0", "abc1234", "A" * 40, "a" * 40 + "\n"])
def test_revision_that_may_move_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="commit") as caught:
        WeightsIdentity.from_revision(name)
    assert caught.value.hint


def test_revisions_differ_from_each_other_and_are_recorded_as_such() -> None:
    one, two = WeightsIdentity.from_revision("a" * 40), WeightsIdentity.from_revision("a" * 64)
    assert one.digest != two.digest
    assert one.kind is two.kind is WeightsKind.REVISION


# Configuration, tokenizer, template

ROPE = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
LLAMA = {"rope_theta": 500000.0, "rope_scaling": ROPE, "sliding_window": None, "layers": [0, 1]}


@pytest.mark.parametrize(
    "other",
    [
        LLAMA | {"rope_theta": 500000},
        LLAMA | {"rope_theta": math.nextafter(500000.0, math.inf)},
        LLAMA | {"rope_scaling": None},
        LLAMA | {"rope_scaling": ROPE | {"factor": 4.0}},
        LLAMA | {"rope_scaling": ROPE | {"rope_type": "yarn"}},
        LLAMA | {"sliding_window": 4096},
        LLAMA | {"sliding_window": False},
        {key: value for key, value in LLAMA.items() if key != "sliding_window"},
        LLAMA | {"attn_logit_softcapping": 50.0},
        LLAMA | {"layers": [1, 0]},
        LLAMA | {"layers": [[0, 1]]},
        LLAMA | {"layers": {"0": 1}},
    ],
)
def test_configuration_that_differs_in_anything_has_another_digest(
    other: dict[str, object],
) -> None:
    assert digest_config(other) != digest_config(LLAMA)


def test_order_of_keys_does_not_count_and_that_of_lists_does() -> None:
    assert digest_config(dict(reversed(LLAMA.items()))) == digest_config(LLAMA)
    assert digest_config({"a": (1, 2)}) == digest_config({"a": [1, 2]})


def test_numbers_that_python_calls_equal_differ() -> None:
    values = [1, 1.0, True, "1", "1.0", 0, 0.0, -0.0, False, "", None, [], {}, [None], math.inf]
    digests = {digest_config({"a": value}) for value in values}
    assert len(digests) == len(values)


@pytest.mark.parametrize(
    "value",
    [math.nan, [math.nan], b"bytes", {1: 2}, {None: 1}, {1, 2}, object(), 1j, "\ud800",
     {"\ud800": 1}, Enum("Other", "A").A],
)  # fmt: skip
def test_configuration_that_is_not_understood_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        digest_config({"a": value})


def test_configuration_without_end_is_refused() -> None:
    endless: dict[str, object] = {}
    endless["a"] = endless
    with pytest.raises(UsageError, match="nested"):
        digest_config(endless)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, math.inf, 1e300, 5e-324]),
        st.sampled_from(["", "a", "b", "list", "mapping", "1", "1.0"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["", "a", "b", "list"]), inner, max_size=3),
    ),
    max_leaves=6,
)
CONFIGS = st.dictionaries(st.sampled_from(["", "a", "b"]), VALUES, max_size=3)


def typed(value: object) -> object:
    """Python says 1 == 1.0 == True and 0.0 == -0.0; a configuration must not."""
    if isinstance(value, dict):
        return ("mapping", tuple(sorted((key, typed(item)) for key, item in value.items())))
    if isinstance(value, list):
        return ("list", tuple(typed(item) for item in value))
    return (type(value).__name__, repr(value))


@given(CONFIGS, CONFIGS)
def test_digest_of_configurations_is_injective(
    one: dict[str, object], two: dict[str, object]
) -> None:
    assert (digest_config(one) == digest_config(two)) is (typed(one) == typed(two))


def test_template_that_is_absent_is_not_one_that_is_empty() -> None:
    digests = [digest_template(text) for text in (None, "", " ", "{{ messages }}")]
    assert digests[0] is None
    assert len(set(digests)) == 4


def test_tokenizer_depends_on_names_content_and_number_of_its_parts() -> None:
    digests = {
        digest_tokenizer(parts)
        for parts in (
            {"a": b"x"},
            {"b": b"x"},
            {"a": b"y"},
            {"a": b"x", "b": b""},
            {"a": b"", "b": b"x"},
            {"a": b"", "bx": b""},
        )
    }
    assert len(digests) == 6
    assert digest_tokenizer({"a": b"", "b": b"x"}) == digest_tokenizer({"b": b"x", "a": b""})
    with pytest.raises(UsageError):
        digest_tokenizer({})
