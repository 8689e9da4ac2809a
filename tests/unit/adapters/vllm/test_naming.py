"""Names of blocks: one content in two scopes never has one name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.adapters.vllm.naming import BlockScope, RequestNames
from kvward.blocks.inputs import PromptInput, check_inputs

BLOCK = 4
IMAGE = PromptInput(kind="image", digest=b"i" * 32, first_token=5, num_tokens=2)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=30)


def scope(name: str, num_blocks: int | None = None) -> BlockScope:
    return BlockScope(scope=name, owner=None, num_blocks=num_blocks)


def names(
    *scopes: BlockScope, inputs: list[PromptInput] | None = None, manifest: bytes = b"m" * 32
) -> RequestNames:
    return RequestNames(
        manifest_digest=manifest, block_tokens=BLOCK, scopes=scopes, inputs=inputs or []
    )


@given(TOKENS, st.text(max_size=6), st.text(max_size=6))
def test_equal_content_has_one_name_only_in_one_scope(
    tokens: list[int], one: str, two: str
) -> None:
    mine = names(scope(one)).extend(tokens, from_block=0)
    theirs = names(scope(two)).extend(tokens, from_block=0)
    assert len(mine) == len(tokens) // BLOCK
    if one == two:
        assert mine == theirs
    else:
        assert not set(mine) & set(theirs)


@given(TOKENS, TOKENS)
def test_other_content_has_no_name_in_common_beyond_the_common_blocks(
    one: list[int], two: list[int]
) -> None:
    first, second = (names(scope("a")).extend(tokens, from_block=0) for tokens in (one, two))
    for number in range(min(len(first), len(second))):
        end = (number + 1) * BLOCK
        assert (first[number] == second[number]) is (one[:end] == two[:end])
    assert len(set(first)) == len(first)


@given(TOKENS, st.lists(st.integers(0, 30)))
def test_names_that_grow_with_the_tokens_are_those_given_at_once(
    tokens: list[int], cuts: list[int]
) -> None:
    whole = names(scope("w", 2), scope("n"))
    grown = names(scope("w", 2), scope("n"))
    found: list[bytes] = []
    for end in [*sorted(cuts), len(tokens)]:
        found += grown.extend(tokens[:end], from_block=len(found))
    assert found == whole.extend(tokens, from_block=0)
    assert grown.num_blocks == len(tokens) // BLOCK
    assert [grown.chain_hash(n) for n in range(grown.num_blocks)] == [
        whole.chain_hash(n) for n in range(whole.num_blocks)
    ]


def test_chain_commits_to_the_model_and_to_images_and_not_to_the_scope() -> None:
    tokens = list(range(12))
    chains = []
    for given_names in [
        names(scope("a")),
        names(scope("b")),
        names(scope("a"), manifest=b"n" * 32),
        names(scope("a"), inputs=[IMAGE]),
    ]:
        given_names.extend(tokens, from_block=0)
        chains.append([given_names.chain_hash(n) for n in range(3)])
    text, other_scope, other_model, image = chains
    assert text == other_scope
    assert not set(text) & set(other_model)
    assert text[0] == image[0]
    assert not set(text[1:]) & set(image[1:])


def test_scopes_change_at_block_boundaries_from_wide_to_narrow() -> None:
    given_names = names(scope("p", 1), scope("w", 3), scope("n"))
    given_names.extend(list(range(20)), from_block=0)
    assert [given_names.scope_of(n).scope for n in range(5)] == ["p", "w", "w", "n", "n"]


def test_block_of_a_wide_scope_is_found_by_others_and_the_next_is_not() -> None:
    tokens = list(range(16))
    one = names(scope("w", 2), scope("one")).extend(tokens, from_block=0)
    two = names(scope("w", 2), scope("two")).extend(tokens, from_block=0)
    assert one[:2] == two[:2]
    assert not set(one[2:]) & set(two[2:])


@given(st.integers(0, 5))
def test_narrowing_gives_blocks_to_the_next_scope_and_changes_no_chain(to_blocks: int) -> None:
    tokens = list(range(20))
    given_names = names(scope("p", 3), scope("n"))
    before = given_names.extend(tokens, from_block=0)
    chain = [given_names.chain_hash(n) for n in range(5)]
    assert given_names.narrow("p", to_blocks=to_blocks) is (to_blocks < 3)
    after = [given_names.resident_hash(n) for n in range(5)]
    kept = min(to_blocks, 3)
    assert after[:kept] == before[:kept]
    assert not set(after[kept:3]) & set(before)
    assert after[3:] == before[3:]
    assert [given_names.chain_hash(n) for n in range(5)] == chain
    assert given_names.narrow("p", to_blocks=5) is False


def test_last_scope_is_never_narrowed_and_names_nobody_else() -> None:
    given_names = names(scope("p", 1), scope("n"))
    assert given_names.narrow("n", to_blocks=0) is False
    assert given_names.narrow("other", to_blocks=0) is False


def test_scopes_that_leave_blocks_to_nobody_are_a_mistake_of_ours() -> None:
    given_names = names(scope("p", 1))
    with pytest.raises(AssertionError):
        given_names.extend(list(range(8)), from_block=0)


def test_images_of_a_prompt_are_taken_as_checked() -> None:
    checked = check_inputs([IMAGE], num_tokens=12)
    one = names(scope("a"), inputs=list(checked.inputs)).extend(list(range(12)), from_block=0)
    assert len(one) == 3
