"""`kvward gateway check` opens what a server would open, and says what the policy decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvward.cli.policy_check import command
from kvward.errors import BackendUnavailableError, ConfigError, KeyUnavailableError
from kvward.gateway import make_policy, read_policy, summarise_policy
from kvward.keeping import RegisteredPrefix
from kvward.keeping.sections import StorePolicy
from servers import write_policy


def check(*arguments: object) -> None:
    command.main([str(argument) for argument in arguments], standalone_mode=False)


def edit(policy: Path, old: str, new: str) -> None:
    text = policy.read_text()
    assert old in text
    policy.write_text(text.replace(old, new))


def test_says_what_is_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys, policy = write_policy(tmp_path, keep=True)
    check(policy, "--json")
    said = json.loads(capsys.readouterr().out)
    assert said["tenants"] == ", ".join(keys)
    assert said["levels"] == "chat_completions conversation, completions conversation"
    assert said["routes off"].startswith("responses, ")
    assert said["keys"] == "kept in sqlite:keyring.db"
    assert said["state outside engines"] == "file:store"
    check(policy)
    text = capsys.readouterr().out
    assert "system messages        not shared wider than the rest" in text
    assert "operators              none" in text


def test_a_policy_without_keyring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, policy = write_policy(tmp_path)
    check(policy, "--json")
    said = json.loads(capsys.readouterr().out)
    assert said["keys"].startswith("derived")
    assert said["state outside engines"] == "none"


def test_what_a_server_would_stop_at_is_found(tmp_path: Path) -> None:
    _, policy = write_policy(tmp_path, keep=True)
    good = policy.read_text()
    for old, new, words in [
        ("[levels]", "[level]", "unknown field"),
        ("# upstream_key_env", "upstream_key_env", "ENGINE_API_KEY"),
        ('"root.key"', '"other.key"', "other.key"),
        ("file:store", "tape:store", "store"),
    ]:
        edit(policy, old, new)
        with pytest.raises((ConfigError, KeyUnavailableError), match=words):
            check(policy)
        policy.write_text(good)
    policy.write_text(good + '\n[[public_prefixes]]\nname = "p"\ntoken_ids_file = "p.json"\n')
    with pytest.raises(ConfigError, match=r"p\.json"):
        check(policy)


def test_a_dead_store_is_not_the_policys_fault(tmp_path: Path) -> None:
    _, policy = write_policy(tmp_path, keep=True)
    edit(policy, "file:store", "valkey://127.0.0.1:9")
    with pytest.raises(BackendUnavailableError):
        check(policy)


def test_summary_holds_no_password(tmp_path: Path) -> None:
    _, path = write_policy(tmp_path, keep=True)
    edit(path, "file:store", "valkey://ward:pass@word@127.0.0.1:6379")
    prefix = RegisteredPrefix(name="welcome", token_ids=(1, 2, 3))
    said = dict(summarise_policy(read_policy(path).settings, [prefix]))
    assert said["state outside engines"] == "valkey://127.0.0.1:6379"
    assert said["public prefixes"] == "welcome (3 tokens)"


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("file:store", "file:store"),
        ("valkey://ward:pass@word@host:1/2", "valkey://host:1/2"),
        ("valkey:ward:password@host", "host"),
        ("s3://bucket/p?region=r", "s3://bucket/p?region=r"),
    ],
)
def test_a_location_is_shown_without_its_password(location: str, shown: str) -> None:
    policy = StorePolicy(location=location, capacity_bytes=1, share_bytes=1)
    assert policy.shown_location == shown


def test_summary_names_operators_and_system_level() -> None:
    policy = make_policy(
        {
            "deployment": "d", "root_key_file": "k", "upstream": "unix:x",
            "levels": {"chat_completions": "request", "completions": "request",
                       "score": "tenant"},
            "tenants": [{"name": "a", "key_sha256": ["0" * 64]}],
            "operators": [{"name": "o", "key_sha256": ["1" * 64]}],
            "spans": {"system": "tenant"},
        },
        source="test",
    )  # fmt: skip
    said = dict(summarise_policy(policy, []))
    assert said["operators"] == "o"
    assert said["system messages"] == "tenant"
    assert said["levels"].endswith("score tenant")
    assert "score" not in said["routes off"]
