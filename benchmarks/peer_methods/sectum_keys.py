"""Runs inside Sectum's environment: its KV probe, with a key for each tenant and longer words.

Usage: python sectum_keys.py BASE-URL MODEL, with {"words": [...]} on standard input.

The probe's prompts are written over word by word, the first one as 384 words of the model, each
other one as 16. So two prompts begin alike exactly as far as they did, by whole blocks.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

FIRST_WORDS = 384
OTHER_WORDS = 16


def spell(prompt: str, words: Sequence[str]) -> str:
    """Write each word of a prompt as many words of the model, always the same."""
    spelled: list[str] = []
    for number, piece in enumerate(prompt.split()):
        length = OTHER_WORDS if number else FIRST_WORDS
        spelled += random.Random(piece).choices(words, k=length)
    return " ".join(spelled)


def main() -> None:
    from sectum_ai.adapters import Capability, ModelAdapter
    from sectum_ai.adapters.model._vllm_live import LiveVLLMBackend
    from sectum_ai.probes import KvCacheTimingProbe
    from sectum_ai.substrate import build_substrate, default_scenario

    base_url, model = sys.argv[1:]
    words = json.load(sys.stdin)["words"]

    class KeyedModel(ModelAdapter):
        """The server under each tenant's own key."""

        def __init__(self) -> None:
            super().__init__("keyed", frozenset({Capability.SHARED_PREFIX_CACHE}))
            self._backends: dict[UUID, Any] = {}

        def infer(self, tenant: UUID, prompt: str, *, user: UUID | None = None) -> str:  # noqa: ARG002 - theirs
            return str(self._of(tenant).complete(spell(prompt, words)))

        def measure_latency(self, tenant: UUID, prompt: str) -> float:
            return float(self._of(tenant).first_token_latency_ms(spell(prompt, words)))

        def train_adapter(
            self, tenant: UUID, texts: Sequence[str], *, user: UUID | None = None
        ) -> None:
            raise NotImplementedError

        def delete(self, tenant: UUID) -> None:
            raise NotImplementedError

        def _of(self, tenant: UUID) -> Any:
            if tenant not in self._backends:
                self._backends[tenant] = LiveVLLMBackend(
                    base_url=base_url, model=model, api_key=f"sectum-{tenant.hex}"
                )
            return self._backends[tenant]

    substrate = build_substrate(default_scenario(seed=2026))
    report = KvCacheTimingProbe(substrate, model=KeyedModel()).run()
    print(
        json.dumps(
            {
                "findings": [finding.evidence_span for finding in report.findings],
                "effect_sizes": list(report.effect_sizes.values()),
            }
        )
    )


if __name__ == "__main__":
    main()
