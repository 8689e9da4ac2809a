"""The paged forward pass computes what the plain one does, and touches nothing else."""

import numpy as np
import pytest

from kvward.lab.model import Segment, forward, new_pages
from lab_models import plain_logits, random_weights, small_config

BLOCK_TOKENS = 4


def segment(tokens: list[int], *, start: int, table: list[int]) -> Segment:
    return Segment(
        token_ids=np.array(tokens, np.intp), start=start, block_table=np.array(table, np.intp)
    )


def prompt(length: int, *, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 50, length).tolist()


@pytest.mark.parametrize("heads", [(4, 2), (4, 4), (6, 1), (1, 1)])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_one_pass_over_scattered_blocks_is_the_plain_pass(
    heads: tuple[int, int], num_layers: int
) -> None:
    config = small_config(num_layers=num_layers, num_heads=heads[0], num_kv_heads=heads[1])
    weights = random_weights(config, seed=2)
    pages = new_pages(config, num_blocks=9, block_tokens=BLOCK_TOKENS)
    tokens = prompt(14)
    logits = forward(weights, config, pages, [segment(tokens, start=0, table=[7, 2, 8, 0])])
    assert logits.shape == (1, config.vocab)
    np.testing.assert_allclose(logits[0], plain_logits(weights, config, tokens)[-1], atol=1e-4)


@pytest.mark.parametrize("cuts", [[1], [4], [3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [10]])
def test_prompt_in_chunks_is_the_prompt_at_once(cuts: list[int]) -> None:
    config = small_config()
    weights = random_weights(config, seed=3)
    pages = new_pages(config, num_blocks=5, block_tokens=BLOCK_TOKENS)
    tokens = prompt(11)
    plain = plain_logits(weights, config, tokens)
    for begin, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        logits = forward(
            weights, config, pages, [segment(tokens[begin:end], start=begin, table=[3, 1, 4])]
        )
        np.testing.assert_allclose(logits[0], plain[end - 1], atol=1e-4)


def test_neighbours_in_a_batch_change_nothing_in_any_order() -> None:
    config = small_config()
    weights = random_weights(config, seed=4)
    prompts = [prompt(n, seed=n) for n in (1, 4, 13, 6)]
    tables = [[0], [1], [2, 3, 4, 5], [6, 7]]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        pages = new_pages(config, num_blocks=8, block_tokens=BLOCK_TOKENS)
        batch = [segment(prompts[i], start=0, table=tables[i]) for i in order]
        logits = forward(weights, config, pages, batch)
        for row, i in zip(logits, order, strict=True):
            plain = plain_logits(weights, config, prompts[i])[-1]
            np.testing.assert_allclose(row, plain, atol=1e-4)


def test_what_others_left_in_unwritten_slots_and_later_blocks_is_not_read() -> None:
    config = small_config()
    weights = random_weights(config, seed=5)
    tokens = prompt(6)
    answers = []
    for leftover in (0.0, 1e6):
        pages = new_pages(config, num_blocks=4, block_tokens=BLOCK_TOKENS)
        pages[:] = leftover
        answers.append(forward(weights, config, pages, [segment(tokens, start=0, table=[2, 0, 3])]))
    np.testing.assert_array_equal(answers[0], answers[1])


def test_only_the_slots_of_new_tokens_are_written_in_every_layer() -> None:
    config = small_config()
    weights = random_weights(config, seed=6)
    pages = new_pages(config, num_blocks=4, block_tokens=BLOCK_TOKENS)
    tokens = prompt(7)
    forward(weights, config, pages, [segment(tokens[:5], start=0, table=[2, 0])])
    before = pages.copy()
    forward(weights, config, pages, [segment(tokens[5:], start=5, table=[2, 0])])
    changed = (pages != before).any(axis=(4, 5))  # (layers, 2, blocks, block_tokens)
    expected = np.zeros_like(changed)
    expected[:, :, 0, 1:3] = True  # tokens 5 and 6 are the second and third of the second block
    np.testing.assert_array_equal(changed, expected)


def test_what_lies_in_the_blocks_is_what_is_attended_to() -> None:
    """A pass that ignored its pages would not be a place where a leak could show."""
    config = small_config()
    weights = random_weights(config, seed=7)
    pages = new_pages(config, num_blocks=4, block_tokens=BLOCK_TOKENS)
    tokens = prompt(9)
    forward(weights, config, pages, [segment(tokens[:8], start=0, table=[1, 2])])
    forward(weights, config, pages, [segment(prompt(4, seed=9), start=0, table=[1])])
    logits = forward(weights, config, pages, [segment(tokens[8:], start=8, table=[1, 2, 3])])
    assert np.abs(logits[0] - plain_logits(weights, config, tokens)[-1]).max() > 1e-2


def test_large_gate_values_are_no_warning_and_no_nan() -> None:
    config = small_config()
    weights = random_weights(config, seed=8)
    for layer in weights.layers:
        layer.w_gate[:] *= 1_000
    pages = new_pages(config, num_blocks=2, block_tokens=BLOCK_TOKENS)
    logits = forward(weights, config, pages, [segment(prompt(5), start=0, table=[0, 1])])
    assert np.isfinite(logits).all()
