"""What stands in a prompt besides tokens is in the identity of every block that it touches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.blocks.chain import derive_chain_link
from kvward.blocks.inputs import (
    InputKind,
    PromptInput,
    check_inputs,
    digest_audio,
    digest_embeddings,
    digest_image,
    digest_video,
    extras_of_block,
)
from kvward.errors import UsageError

ONE, TWO, PROCESSOR = b"\x01" * 32, b"\x02" * 32, b"\x03" * 32
RED = PromptInput(kind="image", digest=ONE, first_token=10, num_tokens=12)
BLOCK_TOKENS = 8


def chain(inputs: list[PromptInput], *, num_tokens: int = 32) -> list[bytes]:
    """Hashes of the blocks of a prompt whose tokens are all one placeholder."""
    checked = check_inputs(inputs, num_tokens=num_tokens)
    assert checked.reason is None
    links, parent = [], b"root"
    for begin in range(0, num_tokens, BLOCK_TOKENS):
        extras = extras_of_block(checked.inputs, first_token=begin, block_tokens=BLOCK_TOKENS)
        parent = derive_chain_link(parent, [7] * BLOCK_TOKENS, extras=extras)
        links.append(parent)
    return links


def shared(one: list[bytes], two: list[bytes]) -> int:
    """How many leading blocks two prompts share."""
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=True)) if a != b), len(one))


# Digests


def image(pixels: bytes = bytes(3000), **changes: Any) -> bytes:
    given_all = {"width": 30, "height": 100, "mode": "L", "processor": PROCESSOR}
    return digest_image(pixels, **(given_all | changes))


def test_image_of_equal_bytes_and_other_shape_mode_or_processing_is_another() -> None:
    images = {
        image(),
        image(width=100, height=30),
        image(width=10, mode="RGB"),
        image(width=10, mode="BGR"),
        image(processor=ONE),
        image(bytes(2999) + b"\1"),
    }
    assert len(images) == 6
    assert image() == image()


def test_sound_of_equal_samples_and_other_form_is_another() -> None:
    form: dict[str, Any] = {"rate_hz": 16000, "channels": 1, "dtype": "int16"}
    changes: list[dict[str, Any]] = [
        {}, {"rate_hz": 8000}, {"channels": 2}, {"dtype": "float16"}, {"processor": ONE}
    ]  # fmt: skip
    sounds = {
        digest_audio(bytes(64), **({"processor": PROCESSOR} | form | change)) for change in changes
    }
    assert len(sounds) == 5


def test_video_depends_on_frames_their_order_and_their_times() -> None:
    videos = {
        digest_video(frames, times_ms=times)
        for frames, times in [
            ([ONE, TWO], [0, 40]),
            ([TWO, ONE], [0, 40]),
            ([ONE, TWO], [0, 80]),
            ([ONE], [0]),
            ([ONE, ONE], [0, 40]),
        ]
    }
    assert len(videos) == 5


def test_embeddings_of_equal_length_differ_by_content_shape_type_and_mask() -> None:
    content = bytes(64)
    embeddings = {
        digest_embeddings(content, shape=[4, 4], dtype="float32", mask=None),
        digest_embeddings(bytes(63) + b"\1", shape=[4, 4], dtype="float32", mask=None),
        digest_embeddings(content, shape=[2, 8], dtype="float32", mask=None),
        digest_embeddings(content, shape=[16], dtype="float32", mask=None),
        digest_embeddings(content, shape=[4, 4], dtype="int32", mask=None),
        digest_embeddings(content, shape=[4, 4], dtype="float32", mask=b""),
        digest_embeddings(content, shape=[4, 4], dtype="float32", mask=b"\1\1\1\0"),
        digest_embeddings(content, shape=[4, 4], dtype="float32", mask=b"\0\1\1\1"),
    }
    assert len(embeddings) == 8


def test_one_kind_never_passes_for_another() -> None:
    same = [digest_image(b"x", width=1, height=1, mode="L", processor=PROCESSOR),
            digest_audio(b"x", rate_hz=1, channels=1, dtype="L", processor=PROCESSOR)]  # fmt: skip
    assert len(set(same)) == 2
    one, two = chain([RED]), chain([replace(RED, kind="video")])
    assert shared(one, two) == 1


@pytest.mark.parametrize("digest", [b"", ONE[:16], ONE + b"\0"])
def test_shortened_digest_of_a_processor_or_frame_is_refused(digest: bytes) -> None:
    with pytest.raises(UsageError):
        image(processor=digest)
    with pytest.raises(UsageError):
        digest_audio(b"", rate_hz=1, channels=1, dtype="int16", processor=digest)
    with pytest.raises(UsageError):
        digest_video([ONE, digest], times_ms=[0, 1])
    for frames, times in ([], []), ([ONE], []), ([ONE], [0, 1]):
        with pytest.raises(UsageError):
            digest_video(frames, times_ms=times)


# What may be cached


def test_understood_inputs_are_cached_in_the_order_of_their_places() -> None:
    later = PromptInput(kind="audio", digest=TWO, first_token=22, num_tokens=2)
    checked = check_inputs([later, RED], num_tokens=24)
    assert checked.inputs == (RED, later)
    assert (checked.cacheable_tokens, checked.reason) == (24, None)
    assert check_inputs([], num_tokens=5).cacheable_tokens == 5


@pytest.mark.parametrize(
    "bad",
    [
        replace(RED, kind="smell"),
        replace(RED, kind="IMAGE"),
        replace(RED, kind=""),
        replace(RED, digest=None),
        replace(RED, digest=b""),
        replace(RED, digest=ONE[:2]),
        replace(RED, digest=ONE[:31]),
        replace(RED, digest=ONE * 2),
        replace(RED, digest="x" * 32),  # type: ignore[arg-type]
    ],
)
def test_input_that_is_not_understood_ends_what_may_be_cached(bad: PromptInput) -> None:
    before = PromptInput(kind="audio", digest=TWO, first_token=0, num_tokens=4)
    after = PromptInput(kind="audio", digest=TWO, first_token=24, num_tokens=4)
    checked = check_inputs([after, bad, before], num_tokens=32)
    assert checked.cacheable_tokens == 10
    assert checked.reason
    assert checked.inputs == (before,)


@pytest.mark.parametrize(
    "bad",
    [
        [RED, replace(RED, first_token=21)],
        [RED, RED],
        [replace(RED, first_token=21)],
        [replace(RED, first_token=-1)],
        [replace(RED, num_tokens=0)],
        [replace(RED, num_tokens=-3)],
        [replace(RED, first_token=32)],
        [RED, replace(RED, first_token=12, num_tokens=2, digest=None)],
    ],
)
def test_places_that_overlap_or_lie_outside_leave_nothing_to_cache(bad: list[PromptInput]) -> None:
    checked = check_inputs(bad, num_tokens=32)
    assert checked.cacheable_tokens == 0
    assert checked.inputs == ()
    assert checked.reason


# Blocks


def test_every_touched_block_names_its_piece() -> None:
    def extras(begin: int) -> tuple[object, ...]:
        return extras_of_block([RED], first_token=begin, block_tokens=8)

    assert [extras(begin) for begin in (0, 8, 16, 24)] == [
        (),
        (["image", ONE, 2, 0, 6, 12],),
        (["image", ONE, 0, 6, 6, 12],),
        (),
    ]


def test_other_image_in_the_same_place_shares_only_what_is_before_it() -> None:
    assert shared(chain([RED]), chain([replace(RED, digest=TWO)])) == 1
    assert shared(chain([RED]), chain([])) == 1
    assert shared(chain([RED]), chain([RED])) == 4


@pytest.mark.parametrize(
    "changes",
    [{"first_token": 11}, {"first_token": 9}, {"num_tokens": 11}, {"num_tokens": 13}],
)
def test_image_moved_or_stretched_by_one_token_shares_nothing_of_it(
    changes: dict[str, int],
) -> None:
    assert shared(chain([RED]), chain([replace(RED, **changes)])) == 1


def test_two_images_that_change_places_differ() -> None:
    first = PromptInput(kind="image", digest=ONE, first_token=8, num_tokens=4)
    second = PromptInput(kind="image", digest=TWO, first_token=12, num_tokens=4)
    changed = [replace(first, digest=TWO), replace(second, digest=ONE)]
    assert shared(chain([first, second]), chain(changed)) == 1


PLACES = st.lists(
    st.tuples(st.sampled_from([ONE, TWO]), st.integers(0, 9), st.integers(1, 5)), max_size=3
)


def laid_out(places: list[tuple[bytes, int, int]]) -> list[PromptInput]:
    inputs, end = [], 0
    for digest, gap, num in places:
        inputs.append(
            PromptInput(kind=InputKind.IMAGE, digest=digest, first_token=end + gap, num_tokens=num)
        )
        end += gap + num
    return inputs


@given(PLACES, PLACES)
def test_chains_meet_only_where_inputs_do(
    one: list[tuple[bytes, int, int]], two: list[tuple[bytes, int, int]]
) -> None:
    one_chain, two_chain = (chain(laid_out(p), num_tokens=48) for p in (one, two))
    assert (one_chain[-1] == two_chain[-1]) is (laid_out(one) == laid_out(two))
    same = shared(one_chain, two_chain) * BLOCK_TOKENS
    reaching = [[i for i in laid_out(p) if i.first_token < same] for p in (one, two)]
    assert reaching[0] == reaching[1]
