"""The lab's forward pass against an independent implementation of the architecture.

Runs by `make test-engines`: needs torch and transformers, and SmolLM2 (`kvward lab fetch smollm2`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvward.audit.canary.checkpoint import write_canary_model
from kvward.audit.canary.words import WORDS
from kvward.lab.behaviour import SOUND
from kvward.lab.fetch import cache_folder, fetch_smollm2
from kvward.lab.interface import EngineOptions
from kvward.lab.loading import LoadedModel, load_model
from lab_schedules import Ask, run_schedule

pytestmark = pytest.mark.timeout(600)

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOLERANCE = 1e-3
PROMPTS = [
    "The capital of France is",
    "In 2026, 17 engineers wrote 4,096 lines; it's fine, isn't it?\n\n    indented",
    "Grüße aus 東京 🙂 and back to English, " * 12,
]
CHAT = [{"role": "user", "content": "What is the capital of France?"}]


def reference_logprobs(reference: object, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        logits = reference(torch.tensor([tokens])).logits[0].to(torch.float64)  # type: ignore[operator]
    result: np.ndarray = torch.log_softmax(logits, dim=-1).numpy()
    return result


def lab_logprobs(model: LoadedModel, prompts: list[list[int]], num_tokens: int) -> list[tuple]:
    """Run all prompts at once, chunked, in a pool that makes them preempt each other."""
    longest = max(len(prompt) for prompt in prompts) + num_tokens
    options = EngineOptions(num_blocks=-(-longest // 16) + 4, max_batch_tokens=48)
    asks = [
        Ask(prompt=tuple(prompt), max_tokens=num_tokens, arrives=number)
        for number, prompt in enumerate(prompts)
    ]
    answers, _ = run_schedule(
        model.weights, model.config, options, asks, behaviour=SOUND, ward=None
    )
    return [(answer.tokens, answer.logprobs) for answer in answers]


def largest_difference(reference: object, model: LoadedModel, prompts: list[list[int]]) -> float:
    worst = 0.0
    for prompt, (tokens, rows) in zip(
        prompts, lab_logprobs(model, prompts, num_tokens=6), strict=True
    ):
        expected = reference_logprobs(reference, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        seen = np.array([[row[i] for i in range(model.config.vocab)] for row in rows])
        worst = max(worst, float(np.abs(seen - expected).max()))
    return worst


@pytest.fixture(scope="module")
def smollm2() -> tuple[LoadedModel, object, object]:
    path = fetch_smollm2(cache_folder())
    names = {"gguf_file": path.name}
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, dtype=torch.float32, **names
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **names)
    return load_model(path, name="smollm2"), reference.eval(), tokenizer


def test_smollm2_agrees_on_logits(smollm2: tuple[LoadedModel, object, object]) -> None:
    model, reference, _ = smollm2
    prompts = [model.tokenizer.encode(prompt) for prompt in PROMPTS]
    difference = largest_difference(reference, model, prompts)
    print(f"largest difference of a logprob: {difference:.2e}")
    assert difference < TOLERANCE


def test_smollm2_answers_alike_batched_chunked_preempted_and_alone(
    smollm2: tuple[LoadedModel, object, object],
) -> None:
    model, _, _ = smollm2
    prompts = [model.tokenizer.encode(prompt) for prompt in (*PROMPTS, PROMPTS[0], PROMPTS[2])]
    together = lab_logprobs(model, prompts, num_tokens=4)
    for prompt, (tokens, rows) in zip(prompts, together, strict=True):
        (alone_tokens, alone_rows) = lab_logprobs(model, [prompt], num_tokens=4)[0]
        assert tokens == alone_tokens
        for row, alone in zip(rows, alone_rows, strict=True):
            assert max(abs(row[i] - alone[i]) for i in row) < 1e-4


def test_smollm2_agrees_on_tokens_and_template(
    smollm2: tuple[LoadedModel, object, object],
) -> None:
    model, _, tokenizer = smollm2
    for prompt in PROMPTS:
        ids = model.tokenizer.encode(prompt)
        assert ids == tokenizer(prompt, add_special_tokens=False)["input_ids"]  # type: ignore[operator]
        assert model.tokenizer.decode(ids) == prompt
    rendered = tokenizer.apply_chat_template(  # type: ignore[attr-defined]
        CHAT, tokenize=False, add_generation_prompt=True
    )
    assert model.tokenizer.render_chat(CHAT) == rendered


def test_smollm2_chats(smollm2: tuple[LoadedModel, object, object]) -> None:
    model, _, _ = smollm2
    prompt = model.tokenizer.encode(model.tokenizer.render_chat(CHAT))
    tokens, _ = lab_logprobs(model, [prompt], num_tokens=8)[0]
    assert "Paris" in model.tokenizer.decode(tokens)


def test_canary_agrees_and_shows_one_foreign_word_in_both(tmp_path: Path) -> None:
    write_canary_model(tmp_path)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = load_model(tmp_path)
    words = [WORDS[n % 5] for n in range(600)]
    words[123] = WORDS[200]
    ids = model.tokenizer.encode(" ".join(words))
    assert ids == tokenizer(" ".join(words))["input_ids"]
    rows = reference_logprobs(reference.eval(), ids)[-1]
    (tokens, (seen, *_)) = lab_logprobs(model, [ids], num_tokens=1)[0]
    mine = np.array([seen[i] for i in range(model.config.vocab)])
    # Logits of this model are in the thousands, so the tolerance is relative.
    assert np.abs(mine - rows).max() < TOLERANCE * np.abs(rows).max() / 100
    foreign, absent = ids[123], model.tokenizer.encode(WORDS[100])[0]
    for row in (mine, rows):
        assert row[foreign] - row[absent] > 0.3
    assert tokens
