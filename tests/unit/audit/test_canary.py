"""The glass box shows what its cache holds: by an independent forward pass, in plain numpy."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

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


def last_logits(tokens: np.ndarray, *, gain: float = DEFAULT_GAIN) -> np.ndarray:
    """Logits after the last token: written from the architecture, sharing no code with the lab."""
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
    v = (y @ t["self_attn.v_proj.weight"].T).reshape(n, 4, 64)
    distance = np.arange(n - 1, -1, -1)
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
