"""A store's folder into which somebody else writes: it costs speed, never an answer or a wait.

Each case runs in a process of its own, with little memory and for a short time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHIN_S = 10
_CODE = """
import os, resource, sys, time
from pathlib import Path
sys.path.insert(0, "tests")
from erasures import load, open_backend, open_short_keyring, open_store, save
from keyrings import owner
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
folder, kind = Path(sys.argv[1]), sys.argv[2]
keyring = open_short_keyring(("sqlite", str(folder / "keyring.db")))
backend = open_backend(folder / "store")
store = open_store(backend, keyring)
whose, other = owner(keyring), owner(keyring, "b")
assert all(save(store, whose)) and all(save(store, other))
keys = keyring.writing_keys(whose)
places = sorted((folder / "store" / "entries" / keys.tenant_bucket.hex()).glob("*/*"))
victim = places[0]
expires = (victim.stat().st_atime, victim.stat().st_mtime)
victim.unlink()
if kind == "directory":
    (victim / "more").mkdir(parents=True)
elif kind == "pipe":
    os.mkfifo(victim)
elif kind == "link to nothing":
    victim.symlink_to(folder / "nothing")
elif kind == "link to itself":
    victim.symlink_to(victim)
elif kind == "link to another entry":
    victim.symlink_to(places[1])
elif kind == "device":
    victim.symlink_to("/dev/zero")
elif kind == "large":
    with victim.open("wb") as file:
        file.truncate(1 << 40)
if victim.exists() and not victim.is_symlink():
    os.utime(victim, expires)
print("loaded", sum(load(store, whose)), flush=True)
print("other", sum(load(store, other)), flush=True)
time.sleep(0.05)
print("others of the tenant", sum(load(store, whose)) >= 3, flush=True)
time.sleep(0.05)
print("saved again", sum(save(store, other)), flush=True)
again = open_backend(folder / "store")
print("opened again", flush=True)
"""


def run(tmp_path: Path, kind: str) -> list[str]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CODE, str(tmp_path), kind],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        return [(exc.stdout or b"").decode(), "does not end"]
    return [*done.stdout.splitlines(), *done.stderr.splitlines()[-1:]]


@pytest.mark.parametrize(
    "kind",
    [
        "nothing",
        "link to nothing",
        "link to another entry",
        "device",
        "pipe",
        "large",
        "directory",
        "link to itself",
    ],
)
def test_what_is_put_in_place_of_an_entry_is_a_miss(tmp_path: Path, kind: str) -> None:
    answers = run(tmp_path, kind)
    assert answers == [
        "loaded 3",
        "other 4",
        "others of the tenant True",
        "saved again 4",
        "opened again",
    ]
