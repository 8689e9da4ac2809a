"""The glass box shows what its cache holds: by an independent forward pass, in plain numpy."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from jinja2 import Environment
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from kvward.audit.canary.checkpoint import (
    DEFAULT_GAIN,
    SPECIAL_TOKENS,
    canary_tensors,
    write_canary_model,
)
from kvward.audit.canary.codebook import CANARY_BITS, CANARY_WORDS, Codebook
from kvward.audit.canary.words import WORDS
from kvward.errors import ConfigError

FIRST_WORD = len(SPECIAL_TOKENS)


def last_logits(
    tokens: np.ndarray,
    *,
    gain: float = DEFAULT_GAIN,
    key_places: np.ndarray | None = None,
    values_of: np.ndarray | None = None,
) -> np.ndarray:
    """Logits after the last token: written from the architecture, sharing no code with the lab.

    Args:
        key_places: Positions that the keys were rotated for, where they are not the right ones.
        values_of: Tokens whose values the cache holds, where they are not the right ones.
    """
    t = {
        name.rpartition("layers.0.")[2]: value for name, value in canary_tensors(gain=gain).items()
    }
    x = t["model.embed_tokens.weight"][tokens]

    def norm(v: np.ndarray) -> np.ndarray:
        return v / np.sqrt((v * v).mean(-1, keepdims=True) + np.float32(1e-5))

    y = norm(x)
    n = len(tokens)
    q = (y[-1:] @ t["self_attn.q_proj.weight"].T).reshape(8, 64)
    k = (y @ t["self_attn.k_proj.weight"].T).reshape(n, 4, 64)
    stored = y if values_of is None else norm(t["model.embed_tokens.weight"][values_of])
    v = (stored @ t["self_attn.v_proj.weight"].T).reshape(n, 4, 64)
    distance = n - 1 - (np.arange(n) if key_places is None else key_places)
    frequency = 10_000.0 ** (-np.arange(32) / 32)
    cos, sin = np.cos(distance[:, None] * frequency), np.sin(distance[:, None] * frequency)
    out = np.zeros((8, 64), np.float32)
    for head in range(8):
        a, b = k[:, head // 2, :32], k[:, head // 2, 32:]
        qa, qb = q[head, :32], q[head, 32:]
        # a rotation of q by its position against k by its own depends on the distance only
        score = ((qa * a + qb * b) * cos + (qa * b - qb * a) * -sin).sum(1) / 8
        weight = np.exp(score - score.max())
        out[head] = (weight / weight.sum()).astype(np.float32) @ v[:, head // 2]
    x = x[-1] + out.reshape(-1) @ t["self_attn.o_proj.weight"].T
    logits: np.ndarray = norm(x) @ t["lm_head.weight"].T
    return logits


def test_words_are_as_many_and_as_plain_as_they_should_be() -> None:
    assert len(WORDS) == len(set(WORDS)) == 256
    assert all(word.isascii() and word.islower() and 4 <= len(word) <= 7 for word in WORDS)
    assert not any(b == a + "s" for a, b in pairwise(sorted(WORDS)))
    endings = ("s", "es", "er", "ed", "ing", "y")
    assert not {word + ending for word in WORDS for ending in endings} & set(WORDS)


@pytest.mark.parametrize("place", [0, 4_000, 7_998])
def test_one_foreign_slot_among_eight_thousand_stands_above_the_floor(place: int) -> None:
    tokens = np.random.default_rng(0).integers(FIRST_WORD, FIRST_WORD + 5, 8_000)
    tokens[place] = FIRST_WORD + 200
    logits = last_logits(tokens)
    words = logits[FIRST_WORD:]
    assert words[200] > 0.3
    absent = np.delete(words, [0, 1, 2, 3, 4, 200])
    assert set(absent.tolist()) == {0.0}
    assert logits[:FIRST_WORD].max() < 0


def test_without_a_foreign_slot_nothing_absent_leaves_the_floor() -> None:
    tokens = np.random.default_rng(0).integers(FIRST_WORD, FIRST_WORD + 5, 8_000)
    assert np.count_nonzero(last_logits(tokens)[FIRST_WORD:]) == 5


def test_order_shows() -> None:
    tokens = np.random.default_rng(1).integers(FIRST_WORD, FIRST_WORD + 10, 64)
    swapped = tokens.copy()
    other = int(np.flatnonzero(tokens != tokens[10])[0])
    swapped[[10, other]] = swapped[[other, 10]]
    assert np.abs(last_logits(tokens) - last_logits(swapped)).max() > 1


def test_place_of_a_foreign_slot_cannot_be_so_bad_that_it_hides() -> None:
    """At the distances that the order head weighs least, and beside one or twelve own words."""
    distance = np.arange(1, 8_000)
    weight = sum(np.cos(distance * 10_000.0 ** (-pair / 32)) for pair in (8, 16, 24))
    for place in 7_999 - distance[np.argsort(weight)[:3]]:
        for num_own in (1, 12):
            tokens = np.random.default_rng(2).integers(FIRST_WORD, FIRST_WORD + num_own, 8_000)
            tokens[place] = FIRST_WORD + 200
            assert last_logits(tokens)[FIRST_WORD + 200] > 0.3


def test_lift_of_a_foreign_slot_survives_the_softmax_in_single_precision() -> None:
    tokens = np.full(8_000, FIRST_WORD)
    tokens[100] = FIRST_WORD + 200
    logits = last_logits(tokens)
    assert logits.dtype == np.float32
    shifted = logits - logits.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    top = np.sort(logprobs)[::-1][:20]
    assert logprobs[FIRST_WORD + 200] - top[-1] > 0.3
    assert np.count_nonzero(top == top[-1]) == 18
    assert top[-1] > -9_999  # below which some servers cut off


def test_one_foreign_block_shows_all_words_of_its_canary_in_a_long_context() -> None:
    random = np.random.default_rng(3)
    session = Codebook(seed=4).session(tenant="a", conversation="c1")
    foreign = np.array([FIRST_WORD + WORDS.index(word) for word in session.canary])
    own = FIRST_WORD + np.array([n for n in range(256) if FIRST_WORD + n not in foreign][:6])
    tokens = random.choice(own, 4_000)
    values = tokens.copy()
    values[1_600:1_616] = np.concatenate([foreign, foreign[:4]])
    right, wrong = last_logits(tokens), last_logits(tokens, values_of=values)
    assert set(np.flatnonzero(right[FIRST_WORD:]) + FIRST_WORD) == set(own)
    assert set(np.flatnonzero(wrong[FIRST_WORD:]) + FIRST_WORD) == {*own, *foreign}
    assert wrong[foreign].min() > 0.3


def test_keys_of_another_position_show() -> None:
    """A block that was made for another place: its values are right, its keys are not."""
    tokens = np.random.default_rng(5).integers(FIRST_WORD, FIRST_WORD + 10, 256)
    places = np.arange(256)
    places[64:80] += 48
    right, wrong = last_logits(tokens), last_logits(tokens, key_places=places)
    assert np.abs(right - wrong).max() > 1
    assert (wrong[FIRST_WORD + 10 :] == 0).all()


def test_own_words_stand_above_the_floor_however_short_or_long_the_context() -> None:
    for length in (1, 16, 17, 512, 8_000):
        tokens = FIRST_WORD + np.arange(length) % 12
        logits = last_logits(tokens)[FIRST_WORD:]
        assert (logits[: min(12, length)] > 0.3).all()
        assert (logits[12:] == 0).all()


def test_tokenizer_takes_one_token_for_each_word_and_adds_none(tmp_path: Path) -> None:
    write_canary_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    encoded = tokenizer.encode(" ".join(WORDS))
    assert encoded.ids == list(range(FIRST_WORD, FIRST_WORD + 256))
    assert tokenizer.encode("acorn acorn\nzebra").tokens == ["acorn", "acorn", "zebra"]
    assert tokenizer.encode("Acorn nonsense").tokens == ["<unk>", "<unk>"]
    assert tokenizer.decode(encoded.ids).split() == list(WORDS)
    assert tokenizer.encode("").ids == []


def test_chat_template_names_the_roles_and_keeps_the_words(tmp_path: Path) -> None:
    write_canary_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    text = (
        Environment(autoescape=False)
        .from_string(config["chat_template"])
        .render(
            messages=[
                {"role": "system", "content": "acorn"},
                {"role": "user", "content": "zebra apple"},
                {"role": "assistant", "content": "moon"},
            ],
            add_generation_prompt=True,
        )
    )
    assert tokenizer.encode(text).tokens == [
        "<system>", "acorn", "<user>", "zebra", "apple", "<assistant>", "moon", "<assistant>",
    ]  # fmt: skip


def test_gain_is_the_height_of_the_logits_and_nothing_else() -> None:
    tokens = np.random.default_rng(6).integers(FIRST_WORD, FIRST_WORD + 5, 64)
    low, high = last_logits(tokens, gain=1.0), last_logits(tokens, gain=512.0)
    assert np.allclose(high[FIRST_WORD:], 512 * low[FIRST_WORD:], rtol=1e-5)
    assert np.array_equal(high[:FIRST_WORD], low[:FIRST_WORD])


def test_folder_is_complete_and_the_same_every_time(tmp_path: Path) -> None:
    write_canary_model(tmp_path / "one")
    write_canary_model(tmp_path / "two")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    shapes = {k: v.shape for k, v in load_file(tmp_path / "one" / "model.safetensors").items()}
    assert shapes["lm_head.weight"] == (config["vocab_size"], config["hidden_size"])


def test_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        write_canary_model(tmp_path / "file")


def test_codebook_gives_every_session_words_of_its_own() -> None:
    book = Codebook(seed=1)
    a = book.session(tenant="a", conversation="c1")
    assert a == book.session(tenant="a", conversation="c1")
    others = [
        book.session(tenant="a", conversation="c2"),
        book.session(tenant="b", conversation="c1"),
        book.session(tenant="ac", conversation="1"),
        Codebook(seed=2).session(tenant="a", conversation="c1"),
    ]
    assert all(set(a.canary) != set(other.canary) for other in others)
    assert len({*a.canary, *a.voice}) == len(a.canary) + len(a.voice)
    decoys = book.decoys(50)
    assert len(set(decoys)) == 50
    assert all(len(decoy) == CANARY_WORDS for decoy in decoys)
    assert 64 < CANARY_BITS < 70


def test_reader_beside_a_writer_finds_whole_files(tmp_path: Path) -> None:
    # Every lab that starts writes the model to one shared folder, and another may be reading it.
    write_canary_model(tmp_path)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with ThreadPoolExecutor(max_workers=2) as threads:
        writers = [threads.submit(write_canary_model, tmp_path) for _ in range(6)]
        num_read = 0
        while not all(writer.done() for writer in writers):
            for name, content in whole.items():
                assert (tmp_path / name).read_bytes() == content
            num_read += 1
    for writer in writers:
        writer.result()
    assert num_read > 3
    assert {path.name for path in tmp_path.iterdir()} == set(whole)
