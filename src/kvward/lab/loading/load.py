"""Load a model from wherever it lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvward.blocks.manifest import ModelManifest
from kvward.errors import ModelLoadError
from kvward.lab.interface import LlamaConfig, LlamaWeights
from kvward.lab.loading.identity import CheckpointIdentity, describe_engine
from kvward.lab.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A checkpoint in memory.

    Attributes:
        name: What callers ask for.
        identity: What exactly it was read from.
    """

    name: str
    config: LlamaConfig
    weights: LlamaWeights
    tokenizer: ChatTokenizer
    identity: CheckpointIdentity

    def manifest(self, *, block_tokens: int) -> ModelManifest:
        """Return what names this model in the lab engine, whose blocks hold so many tokens."""
        return describe_engine(self.identity, self.config, block_tokens=block_tokens)


def load_model(path: Path, *, name: str | None = None) -> LoadedModel:
    """Load a Llama checkpoint.

    Args:
        path: A folder with config.json, safetensors and tokenizer.json, or a GGUF file.
        name: Defaults to the folder's or file's name.
    Raises:
        ModelLoadError: Something is missing, damaged, or not understood. Nothing is guessed.
    """
    # Each reader brings packages of its own, so only the one that is needed is imported.
    if path.is_dir():
        from kvward.lab.loading.folder import load_folder

        return load_folder(path, name=name or path.resolve().name)
    if path.suffix == ".gguf" and path.is_file():
        from kvward.lab.loading.gguf_file import load_gguf

        return load_gguf(path, name=name or path.stem)
    raise ModelLoadError(
        f"There is no model at {path}.",
        hint="Name a folder with config.json and safetensors, or a .gguf file.",
    )
