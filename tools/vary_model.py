"""Write a model of equal shape and other weights, or a small random adapter (LoRA) for a model.

Usage: python tools/vary_model.py weights MODEL DIR
       python tools/vary_model.py adapter MODEL DIR SEED
Needs torch and safetensors: run it with the interpreter of the engine's environment.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_RANK = 8
_STRENGTH = 0.2


def vary_weights(model: Path, folder: Path) -> None:
    """Copy a model, and change what its third layer makes of keys."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if ".layers.2.self_attn.k_proj" in name:
            tensors[name] = tensor * 1.5
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_adapter(model: Path, folder: Path, seed: int) -> None:
    """Write an adapter that changes queries and values of every layer."""
    config = json.loads((model / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    sizes = {"q_proj": heads * head_dim, "v_proj": config["num_key_value_heads"] * head_dim}
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, size in sizes.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{place}.lora_A.weight"] = torch.randn(_RANK, hidden, generator=random) / 8
            tensors[f"{place}.lora_B.weight"] = (
                torch.randn(size, _RANK, generator=random) * _STRENGTH
            )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": _RANK,
        "lora_alpha": _RANK,
        "target_modules": sorted(sizes),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


if __name__ == "__main__":
    if sys.argv[1] == "weights":
        vary_weights(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        write_adapter(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
