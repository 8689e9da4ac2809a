"""Write SmolLM2 as a folder that vLLM can serve, from the GGUF file that `kvward lab fetch` gets.

Usage: python tools/convert_smollm2.py GGUF DIR
Needs torch, transformers and gguf: run it with the interpreter of the engine's environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(gguf: Path, folder: Path) -> None:
    """Convert, unless it has been done."""
    if (folder / "model.safetensors").is_file():
        return
    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # A fresh model: the loaded one remembers that its weights were quantised.
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fresh.load_state_dict(loaded.state_dict())
    fresh.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(**place).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
