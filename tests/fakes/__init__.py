"""Small servers that speak other people's APIs as their documents show them.

They are written from documents and from the servers' own sources, never from our readers, and do
what a real one does that matters here: they keep prefixes in blocks of 16 words, tell how many of
a prompt's they had, and can be told to misbehave.
"""

from __future__ import annotations

from fakes.anthropic import AnthropicFake
from fakes.engine import Fake, Fault
from fakes.llamacpp import LlamaCppFake
from fakes.ollama import OllamaFake
from fakes.openai import OpenAIFake, SGLangFake, TGIFake, VLLMFake

FAKES: dict[str, type[Fake]] = {
    "vllm": VLLMFake,
    "sglang": SGLangFake,
    "llamacpp": LlamaCppFake,
    "ollama": OllamaFake,
    "tgi": TGIFake,
    "openai": OpenAIFake,
    "anthropic": AnthropicFake,
}

__all__ = ["FAKES", "Fake", "Fault"]
