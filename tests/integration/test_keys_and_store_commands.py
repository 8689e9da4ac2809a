"""`kvward keys` and `kvward store` on a guarded lab engine that keeps sealed state."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from kvward.cli.process import ServerProcess
from kvward.errors import KvwardError
from kvward.terms import ExitCode
from servers import write_policy

pytestmark = pytest.mark.timeout(240)

PROMPT = " ".join(["amber birch cedar delta"] * 24)


def kvward(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvward", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def said(*arguments: str) -> Any:
    done = kvward(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Asker:
    """Asks one prompt as a tenant in a conversation; knows what was reused and the pseudonym."""

    def __init__(self, url: str, keys: dict[str, str]) -> None:
        self._url, self._keys = url, keys

    def __call__(self, tenant: str, conversation: str, *, model: str = "canary") -> tuple[int, str]:
        content = json.dumps({"model": model, "max_tokens": 1, "prompt": PROMPT}).encode()
        headers = {
            "authorization": f"Bearer {self._keys[tenant]}",
            "content-type": "application/json",
            "x-kvward-conversation": conversation,
        }
        request = Request(self._url + "/v1/completions", data=content, headers=headers)
        with urlopen(request) as response:
            usage = json.loads(response.read())["usage"]
            pseudonym = response.headers["x-kvward-conversation-id"]
        return usage["prompt_tokens_details"]["cached_tokens"], pseudonym


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    keys, policy = write_policy(tmp_path / "gate", keep=True)
    policy.write_text(policy.read_text().replace("cache_s = 30 ", "cache_s = 1 ").replace(
        "request_s = 300 ", "request_s = 1 "))  # fmt: skip
    return policy, keys


def serving(policy: Path) -> ServerProcess:
    return ServerProcess(["serve", "--config", str(policy)], log=policy.parent / "serve.log")


def test_state_survives_a_restart_for_its_owner_until_it_is_erased(
    kept: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    policy, keys = kept
    with serving(policy) as server:
        ask = Asker(server.url, keys)
        assert ask("a", "one")[0] == 0
        assert ask("a", "two")[0] == 0
        cached, pseudonym = ask("a", "one")
        assert cached > 0
    with serving(policy) as server:
        ask = Asker(server.url, keys)
        # Nobody else has it, the owner does, though the engine is a new one.
        assert ask("b", "one")[0] == 0
        assert ask("a", "three")[0] == 0
        assert ask("a", "one") == (cached, pseudonym)
    stats = said("store", "stats", "--config", str(policy))
    assert sorted(usage["num_entries"] for usage in stats["buckets"].values()) == [6, 18]

    erring = kvward(
        "keys", "erase", "--config", str(policy), "--tenant", "b", "--conversation", pseudonym
    )
    assert "No stored key was found under b" in erring.stderr
    assert said("store", "stats", "--config", str(policy)) == stats

    receipt = tmp_path / "receipt.json"
    done = kvward(
        "keys", "erase", "--config", str(policy), "--tenant", "a", "--conversation", pseudonym,
        "--receipt", str(receipt), "--wait",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Purged 6 stored entries." in done.stderr
    assert "No stored key" not in done.stderr
    status = said("keys", "status", "--config", str(policy))
    assert status["pending_purges"] == 0
    verified = kvward(
        "keys", "verify-receipt", str(receipt), "--receipt-key", status["receipt_key"]
    )
    assert verified.returncode == 0
    assert "The receipt verifies" in verified.stdout
    assert "1 keys were destroyed" in verified.stdout
    receipt.write_text(receipt.read_text().replace('"keys_destroyed": 1', '"keys_destroyed": 2'))
    changed = kvward("keys", "verify-receipt", str(receipt), "--receipt-key", status["receipt_key"])
    assert changed.returncode == ExitCode.EVIDENCE

    with serving(policy) as server:
        ask = Asker(server.url, keys)
        assert ask("a", "one") == (0, pseudonym)
        assert ask("a", "two")[0] == cached
        assert ask("a", "one")[0] > 0


def test_a_running_engine_forgets_within_the_bound(kept: tuple[Path, dict[str, str]]) -> None:
    policy, keys = kept
    with serving(policy) as server:
        ask = Asker(server.url, keys)
        pseudonym = ask("a", "one")[1]
        assert ask("a", "one")[0] > 0
        done = kvward(
            "keys", "erase", "--config", str(policy), "--tenant", "a",
            "--conversation", pseudonym, "--wait",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert ask("a", "one") == (0, pseudonym)
        assert ask("a", "one")[0] > 0
        # The whole tenant: it comes back as somebody new.
        done = kvward("keys", "erase", "--config", str(policy), "--tenant", "a", "--all", "--wait")
        assert done.returncode == 0, done.stderr
        cached, renamed = ask("a", "one")
        assert cached == 0
        assert renamed != pseudonym


def test_rotation_goes_on_reading_what_was_stored_before(
    kept: tuple[Path, dict[str, str]],
) -> None:
    policy, keys = kept
    with serving(policy) as server:
        ask = Asker(server.url, keys)
        ask("a", "one")
    assert said("keys", "rotate", "--config", str(policy), "--tenant", "a")["epoch"] == 1
    with serving(policy) as server:
        ask = Asker(server.url, keys)
        assert ask("a", "one")[0] > 0
    (row,) = (r for r in said("keys", "status", "--config", str(policy))["tenants"]
              if r["tenant"] == "a")  # fmt: skip
    assert (row["epoch"], row["oldest_epoch"], row["num_draining"]) == (1, 0, 1)
    assert said("keys", "rotate", "--config", str(policy), "--tenant", "a", "--retire-old")
    with serving(policy) as server:
        assert Asker(server.url, keys)("a", "one")[0] == 0


def test_a_new_root_key_takes_over(kept: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    policy, keys = kept
    with serving(policy) as server:
        Asker(server.url, keys)("a", "one")
    new_root = policy.parent / "second.key"
    assert kvward("keys", "new-root", str(new_root)).returncode == 0
    done = kvward("keys", "reroot", "--config", str(policy), "--new-root-key-file", str(new_root))
    assert done.returncode == 0, done.stderr
    refused = kvward("keys", "status", "--config", str(policy))
    assert refused.returncode == ExitCode.USAGE
    assert "another root key" in refused.stderr
    policy.write_text(policy.read_text().replace('"root.key"', '"second.key"'))
    with serving(policy) as server:
        assert Asker(server.url, keys)("a", "one")[0] > 0


def test_another_model_reads_what_is_stored_only_when_the_operator_signed(
    kept: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    policy, keys = kept
    text = policy.read_text()
    policy.write_text(text.replace("[store]", '[store]\nequivalences = "equal.json"'))
    old = said("lab", "manifest")["digest"]
    # The same weights and words under a configuration that the digest tells apart.
    other = tmp_path / "upgraded"
    assert kvward("canary-model", str(other)).returncode == 0
    settings = json.loads((other / "config.json").read_text())
    settings["rms_norm_eps"] = settings["rms_norm_eps"] * (1 + 1e-9)
    (other / "config.json").write_text(json.dumps(settings))
    new = said("lab", "manifest", "--model", str(other))["digest"]
    assert new != old

    def reused(*arguments: str) -> int:
        serve = ["serve", "--config", str(policy), *arguments]
        with ServerProcess(serve, log=policy.parent / "serve.log") as server:
            return Asker(server.url, keys)("a", "one", model="upgraded" if arguments else "canary")[
                0
            ]

    equate = ("store", "equate", "--config", str(policy), "--model", new, "--reads-as", old)
    assert kvward(*equate).returncode == 0
    assert reused() == 0
    listed = (policy.parent / "equal.json").read_text()
    (policy.parent / "equal.json").write_text(listed.replace(new, "ab" * 32))
    with pytest.raises(KvwardError):
        reused("--model", str(other))
    (policy.parent / "equal.json").write_text(listed)
    policy.write_text(text)
    assert reused("--model", str(other)) == 0
    policy.write_text(text.replace("[store]", '[store]\nequivalences = "equal.json"'))
    assert reused("--model", str(other)) > 0


def test_nothing_stored_names_a_tenant_or_holds_the_prompt(
    kept: tuple[Path, dict[str, str]],
) -> None:
    policy, keys = kept
    with serving(policy) as server:
        Asker(server.url, keys)("a", "conversation-with-a-name")
    kept_files = [p for p in policy.parent.rglob("*") if p.is_file()
                  and p.name not in {"policy.toml", "root.key", "serve.log"}]  # fmt: skip
    assert len(kept_files) >= 8
    for path in kept_files:
        content = path.read_bytes()
        assert b"conversation-with-a-name" not in content
        assert b"amber" not in content
        assert path.stat().st_mode & 0o077 == 0 or path.name == "index.db", path


@pytest.mark.parametrize(
    ("change", "command", "code", "words"),
    [
        (('"sqlite:keyring.db"', '"file.db"'), ("keys", "status"), ExitCode.USAGE, "sqlite:FILE"),
        (
            ('"sqlite:keyring.db"', '"postgres:NOT_SET_ANYWHERE"'),
            ("keys", "status"), ExitCode.USAGE, "NOT_SET_ANYWHERE",
        ),
        (("cache_s = 1 ", "cache_s = 0 "), ("keys", "status"), ExitCode.USAGE, "one second"),
        (("cache_s = 1 ", ""), ("keys", "status"), ExitCode.USAGE, "cache_s"),
        (('"file:store"', '"ftp://x"'), ("store", "stats"), ExitCode.USAGE, "is not understood"),
        (('"file:store"', '"file:no/such"'), ("store", "stats"), ExitCode.USAGE, "parent folder"),
        (
            ('"file:store"', '"valkey://127.0.0.1:1"'),
            ("store", "stats"), ExitCode.UNREACHABLE, "",
        ),
        (("share_bytes = 536870912", "share_bytes = 0"), ("store", "stats"), 3, "at least one"),
        (("[store]", "[stores]"), ("store", "stats"), ExitCode.USAGE, "stores"),
        (("root_key_file", "root_key_env"), ("keys", "status"), ExitCode.USAGE, "root.key"),
        (
            ("[keyring]", 'root_key_env = "X"\n[keyring]'),
            ("keys", "status"), ExitCode.USAGE, "root_key_env",
        ),
        (("", ""), ("keys", "erase", "--tenant", "a"), ExitCode.USAGE, "--all"),
        (("", ""), ("keys", "erase", "--tenant", "nobody", "--all"), 3, "has no key"),
        (
            ("", ""), ("keys", "erase", "--tenant", "a", "--conversation", "x"),
            ExitCode.USAGE, "x-kvward-conversation-id",
        ),
        (("", ""), ("store", "purge"), ExitCode.USAGE, "--pending"),
        (("", ""), ("keys", "rotate", "--tenant", "nobody"), ExitCode.USAGE, "has no key"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_mend(
    kept: tuple[Path, dict[str, str]],
    change: tuple[str, str],
    command: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    policy, _ = kept
    text = policy.read_text()
    assert change[0] in text
    policy.write_text(text.replace(*change, 1) if change[0] else text)
    done = kvward(*command[:2], "--config", str(policy), *command[2:])
    assert done.returncode == code, done.stderr
    assert re.search(re.escape(words), done.stderr), done.stderr
    assert "Traceback" not in done.stderr
