"""A root key inside a PKCS#11 token wraps the keyring's keys. In a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.softhsm import find_softhsm

_PROGRAM = """
import sys
from pathlib import Path
from keyrings import LIFETIMES, owner
from kvward.errors import ConfigError, KeyUnavailableError
from kvward.scope.keyring import Keyring, SqliteDatabase, reroot
from kvward.scope.keyring.pkcs11 import Pkcs11Root
from services.softhsm import SoftHSM

def raises(kind, text, function, *args, **named):
    try:
        function(*args, **named)
    except kind as exc:
        assert text in str(exc), str(exc)
    else:
        raise AssertionError("nothing was raised")

with SoftHSM(keys=("one", "two")) as token:
    def root(**changes):
        settings = {"module": token.module, "token_label": token.label, "key_label": "one",
                    "pin": token.pin}
        return Pkcs11Root.from_settings(**(settings | changes))

    def keyring(root):
        return Keyring(SqliteDatabase(Path(sys.argv[1])), root, deployment="d",
                       lifetimes=LIFETIMES, now_unix_s=lambda: 1_000_000)

    raises(ConfigError, "no token", root, token_label="other")
    raises(ConfigError, "cannot be loaded", root, module="/nowhere.so")
    raises(ConfigError, "another PIN", root, pin="0000")
    one = root()
    wrapped = one.wrap(b"k" * 32, "a", 1)
    assert one.unwrap(wrapped, "a", 1) == b"k" * 32
    raises(KeyUnavailableError, "does not unwrap", one.unwrap, wrapped, "a", 2)
    raises(KeyUnavailableError, "does not unwrap", one.unwrap, wrapped[:-1] + b"x", "a", 1)
    raises(KeyUnavailableError, "does not unwrap", one.unwrap, b"", "a", 1)
    assert b"k" * 32 not in wrapped
    first = keyring(one)
    keys = first.writing_keys(owner(first))
    one.close()
    again = root()
    second = keyring(again)
    (read,) = second.reading_keys(owner(second))
    assert read.seal_key.matches(keys.seal_key)
    again.close()
    two = root(key_label="two")
    raises(KeyUnavailableError, "another root key", keyring, two)
    print("token kept it")
"""


def test_a_root_key_in_a_token_wraps_a_keyring(tmp_path: Path) -> None:
    if find_softhsm() is None:
        if os.environ.get("KVWARD_REQUIRE_SERVICES"):
            pytest.fail("SoftHSM is not installed: apt-get install softhsm2")
        pytest.skip("SoftHSM is not installed: apt-get install softhsm2")
    # Not in this process: the library keeps its state until the process ends.
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "keyring.db")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.stdout == "token kept it\n", done.stderr
