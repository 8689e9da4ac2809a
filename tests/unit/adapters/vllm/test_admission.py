"""Where blocks of a request belong: whatever is not authentic costs speed and gives nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.adapters.vllm.admission import Admission, Admissions, Arrival, PublicPrefix
from kvward.blocks.inputs import PromptInput
from kvward.scope import RootKey, Scope, ScopeIssuer
from kvward.scope.owner import OWNER_FIELD
from kvward.scope.spans import SPANS_FIELD, Span, digest_tokens, encode_spans
from kvward.terms import SharingLevel
from vllm_engine import BLOCK, NOW, Ward

TOKENS = list(range(100, 120))
FOREIGN = ScopeIssuer.from_root_key(RootKey(b"f" * 32), deployment="d")


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    ward = Ward(folder=tmp_path)
    yield ward
    ward.close()


def admissions(
    ward: Ward, public: Callable[[], Sequence[PublicPrefix]] | None = None
) -> Admissions:
    return Admissions(
        ward.issuer.token_key,
        block_tokens=BLOCK,
        public=public or (lambda: tuple(ward.public)),
        events=ward.events,
        now_unix_s=lambda: float(NOW),
    )


def admit(ward: Ward, token_ids: Sequence[int] = TOKENS, **more: Any) -> Admission:
    values: dict[str, Any] = {
        "cache_salt": ward.token("a"),
        "transfer_params": ward.params("a"),
        "inputs": [],
        "manifest_digest": b"m" * 32,
        "has_embeddings": False,
        "goes_on_arriving": False,
        "public": None,
    } | more
    public = values.pop("public")
    return admissions(ward, public).admit(Arrival(token_ids=token_ids, **values))


def scopes(admission: Admission, num_tokens: int = len(TOKENS)) -> list[str]:
    """Return whose each block is, "nobody" where it is the request's alone."""
    admission.names.extend(list(range(num_tokens)), from_block=0)
    found = [admission.names.scope_of(n).scope for n in range(num_tokens // BLOCK)]
    return ["nobody" if scope.startswith("random-") else scope for scope in found]


def owners(admission: Admission, num_tokens: int = len(TOKENS)) -> list[bytes | None]:
    found = [admission.names.scope_of(n).owner for n in range(num_tokens // BLOCK)]
    return [None if owner is None else owner.tenant_id for owner in found]


NOBODY = ["nobody"] * (len(TOKENS) // BLOCK)


def test_authentic_request_has_its_own_scope_and_owner(ward: Ward) -> None:
    admission = admit(ward)
    assert scopes(admission) == [ward.token("a")] * 5
    assert set(owners(admission)) == {ward.keyring.tenant_id("a")}
    assert admission.reads_only == ()


@pytest.mark.parametrize("salt", [None, "", "a", "kw1.x.0.y", "\ud800", "random-" + "0" * 32])
def test_request_without_a_token_of_ours_finds_nothing_twice(ward: Ward, salt: str | None) -> None:
    one, two = admit(ward, cache_salt=salt), admit(ward, cache_salt=salt)
    assert scopes(one) == scopes(two) == NOBODY
    names = [admission.names.extend(TOKENS, from_block=0) for admission in (one, two)]
    assert not set(names[0]) & set(names[1])
    assert ward.events.counts()["vllm.salt-refused"] == 2


def test_forged_token_and_one_of_another_deployment_are_nobodys(ward: Ward) -> None:
    token = ward.token("a")
    last = "A" if token[-5] != "A" else "B"
    foreign = FOREIGN.token(
        Scope(deployment="d", tenant="a", level=SharingLevel.TENANT, subject=b"", epoch=0)
    )
    for salt in (
        token[:-5] + last + token[-4:],
        token + "\n",
        foreign,
        token.replace(".0.", ".1."),
    ):
        assert scopes(admit(ward, cache_salt=salt)) == NOBODY


@pytest.mark.parametrize("tag", ["", "kwo1.x", 7, True, ["kwo1"], {"a": 1}, "\ud800"])
def test_owner_that_is_not_authentic_keeps_nothing(ward: Ward, tag: object) -> None:
    admission = admit(ward, transfer_params={OWNER_FIELD: tag})
    assert scopes(admission) == [ward.token("a")] * 5
    assert owners(admission) == [None] * 5
    assert ward.events.counts()["vllm.owner-refused"] == 1


def test_owner_of_another_token_or_tenant_is_not_taken(ward: Ward) -> None:
    for params in (ward.params("b"), ward.params("a", "other")):
        assert owners(admit(ward, transfer_params=params)) == [None] * 5
    assert owners(admit(ward, transfer_params={})) == [None] * 5


def test_span_belongs_to_the_wider_scope_of_the_same_tenant(ward: Ward) -> None:
    params = ward.params("a", span=TOKENS[:10])
    admission = admit(ward, transfer_params=params)
    wide, own = ward.token("a", None), ward.token("a")
    assert scopes(admission) == [wide, wide, own, own, own]
    assert set(owners(admission)) == {ward.keyring.tenant_id("a")}
    assert admission.reads_only == ()
    without = admit(ward, transfer_params=ward.params("a", span=TOKENS[:10], owner=False))
    assert scopes(without) == [wide, wide, own, own, own]
    assert owners(without) == [None] * 5


def test_span_shorter_than_a_block_changes_nothing(ward: Ward) -> None:
    params = ward.params("a", span=TOKENS[:3])
    assert scopes(admit(ward, transfer_params=params)) == [ward.token("a")] * 5


def test_span_of_other_tokens_or_beyond_the_prompt_is_dropped(ward: Ward) -> None:
    for span in ([*TOKENS[:9], 0], [0, *TOKENS[:9]], [*TOKENS, 1]):
        params = ward.params("a", span=span)
        assert scopes(admit(ward, transfer_params=params)) == [ward.token("a")] * 5
    assert ward.events.counts()["vllm.spans-refused:other-tokens"] == 3


def test_spans_after_one_of_other_tokens_are_dropped_too(ward: Ward) -> None:
    token, wide = ward.token("a"), ward.token("a", None)
    listed = encode_spans(
        ward.issuer.token_key,
        token=token,
        spans=[
            Span(token=wide, end_tokens=4, digest=bytes(32)),
            Span(token=wide, end_tokens=8, digest=digest_tokens(TOKENS[:8])),
        ],
        expires_unix_s=NOW,
        nonce=bytes(16),
    )
    assert scopes(admit(ward, transfer_params={SPANS_FIELD: listed})) == [token] * 5


def test_spans_of_a_foreign_request_are_refused(ward: Ward) -> None:
    stolen = ward.params("b", span=TOKENS[:8])[SPANS_FIELD]
    listed = {**ward.params("a"), SPANS_FIELD: stolen}
    assert scopes(admit(ward, transfer_params=listed)) == [ward.token("a")] * 5
    assert ward.events.counts()["vllm.spans-refused:not-authentic"] == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_whatever_stands_beside_a_token_the_request_is_admitted_in_its_own_scope(
    ward: Ward,
) -> None:
    @given(JSON, JSON)
    def check(tag: object, spans: object) -> None:
        admission = admit(ward, transfer_params={OWNER_FIELD: tag, SPANS_FIELD: spans})
        assert scopes(admission) == [ward.token("a")] * 5
        assert owners(admission) == [None] * 5

    check()


def test_deeply_nested_owner_is_refused_like_any_other(ward: Ward) -> None:
    tag: list[Any] = []
    for _ in range(100_000):
        tag = [tag]
    try:
        assert owners(admit(ward, transfer_params={OWNER_FIELD: tag})) == [None] * 5
    finally:
        while tag:
            tag = tag.pop()


def test_embeddings_and_unknown_adapters_are_nobodys(ward: Ward) -> None:
    assert scopes(admit(ward, has_embeddings=True)) == NOBODY
    one, two = admit(ward, manifest_digest=None), admit(ward, manifest_digest=None)
    assert scopes(one) == scopes(two) == NOBODY
    assert one.names.chain_hash(0) != two.names.chain_hash(0)
    assert ward.events.counts()["vllm.uncacheable"] == 3


def image(first: int, num: int, *, digest: bytes | None = b"i" * 32, kind: str = "image") -> Any:
    return PromptInput(kind=kind, digest=digest, first_token=first, num_tokens=num)


def test_from_an_input_that_is_not_understood_on_everything_is_nobodys(ward: Ward) -> None:
    own = ward.token("a")
    for unknown in (image(9, 3, kind="smell"), image(9, 3, digest=None), image(9, 3, digest=b"i")):
        assert scopes(admit(ward, inputs=[unknown])) == [own, own, *["nobody"] * 3]


def test_inputs_that_overlap_or_lie_outside_make_all_of_it_nobodys(ward: Ward) -> None:
    for inputs in ([image(0, 4), image(3, 2)], [image(18, 4)], [image(-1, 2)], [image(2, 0)]):
        assert scopes(admit(ward, inputs=inputs)) == NOBODY


def test_image_ends_a_span_and_not_the_requests_own_scope(ward: Ward) -> None:
    params = ward.params("a", span=TOKENS[:16])
    wide, own = ward.token("a", None), ward.token("a")
    assert scopes(admit(ward, transfer_params=params, inputs=[image(9, 3)])) == [
        wide,
        wide,
        own,
        own,
        own,
    ]


def test_two_images_under_equal_placeholders_share_no_name(ward: Ward) -> None:
    one, two = (admit(ward, inputs=[image(4, 4, digest=d * 32)]) for d in (b"1", b"2"))
    first, second = (each.names.extend(TOKENS, from_block=0) for each in (one, two))
    assert first[0] == second[0]
    assert not set(first[1:]) & set(second[1:])


def test_image_ends_a_span_also_before_an_input_that_is_not_understood(ward: Ward) -> None:
    params = ward.params("a", span=TOKENS[:16])
    admission = admit(
        ward, transfer_params=params, inputs=[image(5, 2), image(13, 1, kind="smell")]
    )
    wide, own = ward.token("a", None), ward.token("a")
    assert scopes(admission) == [wide, own, own, "nobody", "nobody"]


def test_longest_public_prefix_is_found_by_everybody_and_made_by_nobody(ward: Ward) -> None:
    short = ward.register("short", TOKENS[:4])
    long = ward.register("long", TOKENS[:13])
    ward.register("other", [*TOKENS[:12], 0])
    for tenant in ("a", "b"):
        admission = admit(ward, cache_salt=ward.token(tenant), transfer_params=ward.params(tenant))
        assert scopes(admission) == [long] * 3 + [ward.token(tenant)] * 2
        assert admission.reads_only == (long,)
        assert owners(admission)[:3] == [ward.keyring.tenant_id("kvward/public")] * 3
        assert owners(admission)[3:] == [ward.keyring.tenant_id(tenant)] * 2
    assert scopes(admit(ward, TOKENS[:8]), 8) == [short, ward.token("a")]


def test_span_that_goes_beyond_a_public_prefix_takes_what_follows_it(ward: Ward) -> None:
    public = ward.register("p", TOKENS[:4])
    wide, own = ward.token("a", None), ward.token("a")
    admission = admit(ward, transfer_params=ward.params("a", span=TOKENS[:12]))
    assert scopes(admission) == [public, wide, wide, own, own]
    ward.register("longer", TOKENS[:16])
    inside = admit(ward, transfer_params=ward.params("a", span=TOKENS[:12]))
    assert scopes(inside) == [ward.public[1].token] * 4 + [own]


def test_forged_salt_finds_no_public_prefix_either(ward: Ward) -> None:
    ward.register("p", TOKENS[:8])
    assert scopes(admit(ward, cache_salt="kw1.forged")) == NOBODY


def test_warm_up_makes_the_prefix_and_nothing_beyond_it(ward: Ward) -> None:
    token = ward.register("p", TOKENS[:9])
    admission = admit(ward, cache_salt=token, transfer_params={})
    assert scopes(admission) == [token, token, "nobody", "nobody", "nobody"]
    assert admission.reads_only == ()
    other = admit(ward, [0, *TOKENS], cache_salt=token, transfer_params={})
    assert scopes(other) == NOBODY


def tokens_made(ward: Ward, num_answers: int) -> set[str]:
    """Return what a request may make that is admitted while the prefixes go away."""
    answers = [tuple(ward.public)] * num_answers

    def public() -> Sequence[PublicPrefix]:
        return answers.pop() if answers else ()

    admission = admit(ward, public=public)
    return set(scopes(admission)) - set(admission.reads_only)


@pytest.mark.parametrize("num_answers", [0, 1, 3])
def test_prefixes_that_are_there_or_not_are_made_by_no_tenant(ward: Ward, num_answers: int) -> None:
    assert ward.register("p", TOKENS[:8]) not in tokens_made(ward, num_answers)


def test_prefixes_that_go_away_during_an_admission_are_made_by_no_tenant(ward: Ward) -> None:
    assert ward.register("p", TOKENS[:8]) not in tokens_made(ward, 2)
