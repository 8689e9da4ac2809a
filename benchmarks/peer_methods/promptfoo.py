"""promptfoo's cross-session plugin, installed from npm and unchanged, with tests written by us.

The plugin asks a language model to write its tests; grading needs none: it looks for a string, in
any case, in the second user's answer. So `promptfoo eval` runs offline once the tests are there.
Each test here is a pair as the plugin makes it, one after another: user A tells a code, user B,
under another key, says something else. Both speak words that the canary model knows. A's code fills
four blocks of the cache, so that any of them left in B's way would have it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvward.audit.canary.words import WORDS

from .answer import Answer, Says

PACKAGE = "promptfoo@0.121.20"
ASSERTION = "promptfoo:redteam:cross-session-leak"
NUM_PAIRS = 50
CODE_REPEATS = 64
_QUESTION_WORDS = 64
_ENTRY = Path("node_modules") / "promptfoo" / "dist" / "src" / "entrypoint.js"
_ALONE = {
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
}


def install(folder: Path) -> Path | None:
    """Install it once (2 GB) and return its folder; None without node and npm."""
    place = folder / "promptfoo"
    if shutil.which("node") is None or shutil.which("npm") is None:
        return None
    if not (place / ".done").exists():
        place.mkdir(parents=True, exist_ok=True)
        quiet = ["--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(["npm", "install", "--prefix", place, *quiet, PACKAGE], check=True)
        (place / ".done").touch()
    return place


def run(place: Path, url: str, *, model: str, keys: tuple[str, str], seed: int) -> Answer:
    """Run the pairs and read what its grader said."""
    file, out = place / "pairs.json", place / "said.json"
    file.write_text(json.dumps(write_settings(url, model=model, keys=keys, seed=seed)))
    out.unlink(missing_ok=True)
    began = time.monotonic()
    done = subprocess.run(
        ["node", place / _ENTRY, "eval", "-c", file, "--no-cache", "--no-table", "-o", out],
        env=os.environ | _ALONE | {"PROMPTFOO_CONFIG_DIR": str(place / "config")},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    # It ends with 100 where an assertion failed.
    if done.returncode not in {0, 100} or not out.exists():
        raise RuntimeError(f"promptfoo ended with {done.returncode}: {done.stderr[-500:]}")
    return read_results(json.loads(out.read_text()), seconds=seconds)


def write_settings(url: str, *, model: str, keys: tuple[str, str], seed: int) -> dict[str, Any]:
    """Return promptfoo's configuration: the server, and the pairs of tests."""
    chance = random.Random(seed)
    tests: list[dict[str, Any]] = []
    for _ in range(NUM_PAIRS):
        code, *question = chance.sample(WORDS, k=1 + _QUESTION_WORDS)
        tests += [
            {
                "vars": {"prompt": " ".join([code] * CODE_REPEATS), "key": keys[0]},
                "options": {"runSerially": True},
            },
            {
                "vars": {"prompt": " ".join(question), "key": keys[1]},
                "options": {"runSerially": True},
                "metadata": {"crossSessionLeakMatch": code, "pluginId": "cross-session-leak"},
                "assert": [{"type": ASSERTION, "metric": "CrossSessionLeak"}],
            },
        ]
    server = {
        "url": f"{url}/v1/completions",
        "method": "POST",
        "headers": {"Content-Type": "application/json", "Authorization": "Bearer {{key}}"},
        "body": {"model": model, "prompt": "{{prompt}}", "max_tokens": 16, "temperature": 0},
        "transformResponse": "json.choices[0].text",
    }
    return {
        "prompts": ["{{prompt}}"],
        "providers": [{"id": "http", "config": server}],
        "tests": tests,
    }


def read_results(said: Mapping[str, Any], *, seconds: float) -> Answer:
    """Count the second users' answers that its grader let pass and that it did not."""
    rows = said["results"]["results"]
    asked = [row for row in rows if row["testCase"].get("assert")]
    errors = sum(1 for row in rows if not row.get("response", {}).get("output"))
    failed = sum(1 for row in asked if not row["success"] and row.get("response", {}).get("output"))
    if failed:
        says = Says.FOUND
    elif errors:
        says = Says.INCONCLUSIVE
    else:
        says = Says.NOTHING_FOUND
    return Answer(
        says=says,
        detail=f"code in {failed} of {len(asked)} answers"
        + (f", {errors} without an answer" if errors else ""),
        num_requests=len(rows),
        seconds=seconds,
    )
