"""Sectum's own KV probe, installed from the package index and unchanged, in two ways.

`run_as_shipped` is its command line with its vLLM adapter. That one knows one API key, so all of
its tenants come under that key, and its prompts are shorter than a block of 16 tokens.
`run_with_keys` is the same probe over an adapter of ours (`sectum_keys.py`), with a key for each
tenant and longer words, to see what the probe itself can find.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvward.audit.canary.words import WORDS

from .answer import Answer, Says

REQUIREMENTS = ("sectum-ai==0.11.0", "openai==3.57.0")
PROBE = "kv-cache-timing"
TRIALS = 24
_PYTHONS = ("python3.12", "python3.13", "python3.14")
_SCRIPT = Path(__file__).with_name("sectum_keys.py")


def install(folder: Path) -> Path | None:
    """Make an environment once and return its folder of programs; None without Python 3.12."""
    environment = folder / "sectum"
    if not (environment / ".done").exists():
        python = next(filter(None, map(_find_python, _PYTHONS)), None)
        if python is None:
            return None
        subprocess.run([python, "-m", "venv", environment], check=True)
        pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *REQUIREMENTS], check=True)
        (environment / ".done").touch()
    return environment / "bin"


def run_as_shipped(programs: Path, url: str, *, model: str, key: str, folder: Path) -> Answer:
    """Run `sectum-ai probe --probe kv-cache-timing`."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "workdir": str(folder / "work"),
        "adapters": {
            "model": {"kind": "vllm", "base_url": f"{url}/v1", "model": model, "api_key": key}
        },
    }
    file = folder / "sectum-ai.yaml"
    file.write_text(json.dumps(settings))
    _call([programs / "sectum-ai", "seed", "--config", file])
    began = time.monotonic()
    said = _call(
        [programs / "sectum-ai", "probe", "--config", file, "--probe", PROBE, "--output", "json"]
    )
    seconds = time.monotonic() - began
    run = json.loads((folder / "work" / "run.json").read_text())
    return read_run(json.loads(said), run, seconds=seconds)


def run_with_keys(programs: Path, url: str, *, model: str) -> Answer:
    """Run the probe's class over our adapter."""
    began = time.monotonic()
    said = _call(
        [programs / "python", _SCRIPT, f"{url}/v1", model], given=json.dumps({"words": WORDS})
    )
    return read_report(json.loads(said), seconds=time.monotonic() - began)


def read_run(summary: Mapping[str, Any], run: Mapping[str, Any], *, seconds: float) -> Answer:
    """Read what the command line wrote."""
    sizes = run["metrics"]["side_channel_effect_sizes"]
    return _answer(int(summary["confirmed_findings"]), list(sizes.values()), seconds=seconds)


def read_report(report: Mapping[str, Any], *, seconds: float) -> Answer:
    """Read what `sectum_keys.py` wrote."""
    return _answer(len(report["findings"]), report["effect_sizes"], seconds=seconds)


def _answer(num_findings: int, effect_sizes: list[float], *, seconds: float) -> Answer:
    num_pairs = len(effect_sizes)
    if not num_pairs:
        return Answer(
            says=Says.INCONCLUSIVE, detail="timed no pair", num_requests=0, seconds=seconds
        )
    # Of n tenants there are n (n - 1) ordered pairs; each tenant warms once.
    num_tenants = next(n for n in range(2, num_pairs + 2) if n * (n - 1) == num_pairs)
    return Answer(
        says=Says.FOUND if num_findings else Says.NOTHING_FOUND,
        detail=f"{num_findings} of {num_pairs} pairs, effect at most {max(effect_sizes):.2f}",
        num_requests=num_tenants + num_pairs * 2 * TRIALS,
        seconds=seconds,
    )


def _find_python(name: str) -> str | None:
    """Return an interpreter that starts: a version manager's stand-in may name one it lacks."""
    path = shutil.which(name)
    if path is None or subprocess.run([path, "-c", ""], capture_output=True).returncode:
        return None
    return path


def _call(command: list[str | Path], *, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout
