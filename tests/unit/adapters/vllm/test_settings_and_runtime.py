"""What an operator tells the connector, what it opens, and what it writes down."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from keyrings import Clock, open_keyring
from kvward.adapters.vllm.runtime import PublicScopes, Runtime
from kvward.adapters.vllm.settings import make_settings
from kvward.adapters.vllm.spool import EventSpool
from kvward.errors import ConfigError, KeyringUnavailableError
from kvward.keeping import POLICY_VARIABLE, RegisteredPrefix
from kvward.scope import ScopeIssuer, verify_token
from kvward.scope.keyring import rotate
from two_tenants import LAYOUT

EXAMPLE = Path(__file__).parents[4] / "examples" / "contract.toml"


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


# Settings.


def test_policy_comes_from_the_settings_or_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(POLICY_VARIABLE, raising=False)
    for values in ({}, {"policy": ""}, {"policy": None}):
        with pytest.raises(ConfigError, match="does not know its policy"):
            make_settings(values)
    monkeypatch.setenv(POLICY_VARIABLE, "/environment")
    assert make_settings({}).policy == "/environment"
    assert make_settings({"policy": "/settings"}).policy == "/settings"


@pytest.mark.parametrize(
    "values",
    [
        {"polcy": "x"},
        {"policy": 7},
        {"lookup_threads": 0},
        {"lookup_threads": True},
        {"lookup_threads": 1.5},
        {"lookup_threads": "8"},
        {"lookup_ms": 0},
        {"lookup_ms": -1},
        {"transfer_threads": 0},
        {"load_s": 0},
        {"pending_bytes": 0},
        {"untested_platform": 1},
        {"adapters_immutable": "yes"},
        {"events_folder": 1},
    ],
)
def test_settings_are_read_strictly(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        make_settings({"policy": "x"} | values)


def test_nothing_is_vouched_for_by_default() -> None:
    settings = make_settings({"policy": "x"})
    assert not settings.adapters_immutable
    assert not settings.untested_platform


@pytest.mark.parametrize("name", ["lookup_ms", "load_s"])
def test_time_that_is_not_a_number_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        make_settings({"policy": "x", name: float("nan")})


# Spool.


def test_counts_are_written_in_whole_when_it_closes(tmp_path: Path) -> None:
    spool = EventSpool(str(tmp_path / "new" / "folder"), role="worker")
    spool.emit("vllm.load-late")
    spool.emit("vllm.uncacheable", reason="x")
    spool.close()
    spool.close()
    (path,) = (tmp_path / "new" / "folder").iterdir()
    assert path.name == f"kvward-vllm-worker-{os.getpid()}.json"
    expected = {"vllm.load-late": 1, "vllm.uncacheable": 1, "vllm.uncacheable:x": 1}
    assert json.loads(path.read_text()) == spool.counts() == expected


def test_counts_are_written_while_it_runs(tmp_path: Path) -> None:
    spool = EventSpool(str(tmp_path), role="scheduler")
    spool.emit("a")
    until(lambda: any(tmp_path.glob("*.json")))
    spool.close()


def test_folder_that_goes_away_costs_counts_and_nothing_else(tmp_path: Path) -> None:
    spool = EventSpool(str(tmp_path / "gone"), role="worker")
    (tmp_path / "gone").rmdir()
    spool.emit("a")
    spool.close()
    assert spool.counts() == {"a": 1}


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    spool = EventSpool(None, role="worker")
    spool.emit("a")
    spool.close()
    assert spool.counts() == {"a": 1}


# Public prefixes.

PREFIX = RegisteredPrefix(name="p", token_ids=tuple(range(8)))


class Keyring:
    """A real issuer's, which may be out."""

    def __init__(self, issuer: ScopeIssuer) -> None:
        self._issuer, self.is_out, self.num_asked = issuer, False, 0

    def __getattr__(self, name: str) -> object:
        if name == "current":
            self.num_asked += 1
            if self.is_out:
                raise KeyringUnavailableError("It does not answer.")
        return getattr(self._issuer, name)


def public(issuer: ScopeIssuer, *, cache_s: float, is_stored: bool = True) -> PublicScopes:
    return PublicScopes([PREFIX], issuer, is_stored=is_stored, cache_s=cache_s)


def test_prefixes_are_there_from_the_start_with_their_owner(tmp_path: Path) -> None:
    keyring = open_keyring(("sqlite", str(tmp_path / "k")), Clock())
    issuer = ScopeIssuer(keyring, keyring.token_key, epochs=keyring, deployment="d")
    for is_stored in (True, False):
        scopes = public(issuer, cache_s=5.0, is_stored=is_stored)
        assert scopes.current() == ()
        scopes.start()
        (prefix,) = scopes.current()
        assert prefix.token_ids == PREFIX.token_ids
        verified = verify_token(prefix.token, token_key=keyring.token_key)
        if is_stored:
            assert prefix.owner is not None
            assert prefix.owner.scope_id == verified.scope_id
            assert prefix.owner.tenant_id == keyring.tenant_id("kvward/public")
        else:
            assert prefix.owner is None
        scopes.close()
    keyring.database.close()


def test_without_the_keyring_nothing_is_public_when_its_answer_has_run_out(
    tmp_path: Path,
) -> None:
    database = open_keyring(("sqlite", str(tmp_path / "k")), Clock())
    real = ScopeIssuer(database, database.token_key, epochs=database, deployment="d")
    keyring = Keyring(real)
    scopes = public(keyring, cache_s=0.2)  # type: ignore[arg-type]
    scopes.start()
    assert len(scopes.current()) == 1
    keyring.is_out = True
    began = time.monotonic()
    until(lambda: not scopes.current())
    assert time.monotonic() - began < 2.0
    asked = keyring.num_asked
    until(lambda: keyring.num_asked > asked + 2)  # it goes on asking
    keyring.is_out = False
    until(lambda: len(scopes.current()) == 1)
    scopes.close()
    database.database.close()


def test_keyring_that_is_out_at_the_start_makes_nothing_public(tmp_path: Path) -> None:
    database = open_keyring(("sqlite", str(tmp_path / "k")), Clock())
    keyring = Keyring(ScopeIssuer(database, database.token_key, epochs=database, deployment="d"))
    keyring.is_out = True
    scopes = public(keyring, cache_s=60.0)  # type: ignore[arg-type]
    scopes.start()
    assert scopes.current() == ()
    scopes.close()
    database.database.close()


def test_after_a_rotation_the_prefix_is_another_scope(tmp_path: Path) -> None:
    keyring = open_keyring(("sqlite", str(tmp_path / "k")), Clock())
    issuer = ScopeIssuer(keyring, keyring.token_key, epochs=keyring, deployment="d")
    scopes = public(issuer, cache_s=0.2)
    scopes.start()
    (before,) = scopes.current()
    before_scope = PREFIX.scope(issuer)
    keyring.writing_keys(PREFIX.owner(issuer, token=issuer.token(before_scope)))
    rotate(keyring, "kvward/public", retire_old=True)
    until(lambda: bool(scopes.current()) and scopes.current()[0].token != before.token)
    scopes.close()
    keyring.database.close()


def test_other_tokens_or_another_name_are_another_scope(tmp_path: Path) -> None:
    keyring = open_keyring(("sqlite", str(tmp_path / "k")), Clock())
    issuer = ScopeIssuer(keyring, keyring.token_key, epochs=keyring, deployment="d")
    prefixes = [
        PREFIX,
        RegisteredPrefix(name="p", token_ids=tuple(range(9))),
        RegisteredPrefix(name="q", token_ids=PREFIX.token_ids),
    ]
    assert len({issuer.token(prefix.scope(issuer)) for prefix in prefixes}) == 3
    keyring.database.close()


# Runtime.


def policy(folder: Path, *, store: str = "", keyring: bool = True, prefix: object = None) -> str:
    (folder / "root.key").write_bytes(b"")
    lines = ['deployment = "d"', 'root_key_env = "TEST_ROOT"']
    if prefix is not None:
        (folder / "p.json").write_text(json.dumps(prefix))
        lines.append('public_prefixes = [{name = "p", token_ids_file = "p.json"}]')
    if keyring:
        lines += ["[keyring]", 'database = "sqlite:keyring.db"', "cache_s = 5", "request_s = 5",
                  "max_age_s = 100"]  # fmt: skip
    if store:
        lines += ["[store]", f'location = "{store}"', "capacity_bytes = 1000000",
                  "share_bytes = 1000"]  # fmt: skip
    path = folder / "policy.toml"
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ROOT", "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI=")


@pytest.mark.usefixtures("_root")
def test_runtime_opens_what_the_policy_names_and_no_more(tmp_path: Path) -> None:
    for name, store in (("bare", ""), ("kept", "file:store")):
        folder = tmp_path / name
        folder.mkdir()
        settings = make_settings({"policy": policy(folder, store=store, prefix=[1, 2, 3])})
        runtime = Runtime(settings, LAYOUT, role="scheduler")
        assert (runtime.store is not None) is bool(store)
        (prefix,) = runtime.public.current()
        assert prefix.token_ids == (1, 2, 3)
        assert (prefix.owner is not None) is bool(store)
        runtime.close()
        worker = Runtime(settings, LAYOUT, role="worker")
        assert worker.public.current() == ()
        worker.close()


@pytest.mark.usefixtures("_root")
def test_connector_refuses_a_contract_that_the_kept_settings_break(tmp_path: Path) -> None:
    path = Path(policy(tmp_path, store="file:store"))
    path.write_text('contract = "contract.toml"\n' + path.read_text())
    text = EXAMPLE.read_text().replace('"example"', '"d"', 1)
    (tmp_path / "contract.toml").write_text(text)
    settings = make_settings({"policy": str(path)})
    with pytest.raises(ConfigError, match=r"interference: A share of 0\.1 is promised"):
        Runtime(settings, LAYOUT, role="worker")
    (tmp_path / "contract.toml").write_text(text.replace("share = 0.1", "share = 0.001"))
    runtime = Runtime(settings, LAYOUT, role="worker")
    assert runtime.notes == ()
    runtime.close()


@pytest.mark.usefixtures("_root")
def test_store_in_memory_is_refused(tmp_path: Path) -> None:
    settings = make_settings({"policy": policy(tmp_path, store="memory:")})
    with pytest.raises(ConfigError, match="in memory"):
        Runtime(settings, LAYOUT, role="worker")


@pytest.mark.usefixtures("_root")
@pytest.mark.parametrize("prefix", [[], [-1], [2**32], ["1"], [1.5], {"a": 1}, [True]])
def test_prefix_that_is_no_list_of_token_ids_is_refused(tmp_path: Path, prefix: object) -> None:
    settings = make_settings({"policy": policy(tmp_path, prefix=prefix)})
    with pytest.raises(ConfigError):
        Runtime(settings, LAYOUT, role="scheduler")


@pytest.mark.usefixtures("_root")
def test_two_processes_of_one_policy_issue_the_same_tokens(tmp_path: Path) -> None:
    settings = make_settings({"policy": policy(tmp_path, prefix=[1, 2, 3])})
    runtimes = [Runtime(settings, LAYOUT, role="scheduler") for _ in range(2)]
    assert runtimes[0].public.current() == runtimes[1].public.current()
    for runtime in runtimes:
        runtime.close()
