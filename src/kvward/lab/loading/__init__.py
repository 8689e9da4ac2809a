"""Checkpoints from disk: a folder of safetensors, or one GGUF file."""

from kvward.lab.loading.load import LoadedModel, load_model

__all__ = ["LoadedModel", "load_model"]
