"""A deployment that cannot honour its contract does not start, and says which clause it is."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest

from inner_applications import make_warded
from kvward.cli.main import cli
from kvward.contract import read_contract
from kvward.errors import ConfigError, ContractError
from kvward.gateway import honour_policy_contract, read_policy
from kvward.gateway.promise import find_unkept_here
from kvward.keeping import (
    Kept,
    RegisteredPrefix,
    find_unkept,
    load_public_prefixes,
    prefix_digest,
    refuse_unkept,
)
from servers import write_policy

EXAMPLE = Path(__file__).parents[3] / "examples" / "contract.toml"
TODAY = date(2026, 12, 10)


def deployment(folder: Path) -> tuple[Path, Path]:
    """Write a policy with keyring and store, and the example's contract of it."""
    _, policy = write_policy(folder, keep=True)
    contract = folder / "contract.toml"
    contract.write_text(EXAMPLE.read_text().replace('"example"', '"test"', 1))
    edit(policy, 'completions = "conversation"\n#', 'completions = "request"\n#')
    policy.write_text('contract = "contract.toml"\n' + policy.read_text())
    return policy, contract


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, (old, text.count(old))
    path.write_text(text.replace(old, new))


def unkept(policy: Path) -> dict[str | None, str]:
    kept = read_policy(policy)
    prefixes = load_public_prefixes(kept.settings, kept.folder)
    contract = read_contract(kept.folder / "contract.toml")
    found = list(find_unkept_here(contract, kept.settings, prefixes))
    assert all(one.mend.endswith(".") and one.message.endswith(".") for one in found)
    return {
        clause: " ".join(one.message for one in found if one.clause == clause)
        for clause in {one.clause for one in found}
    }


def test_settings_that_keep_every_promise_start(tmp_path: Path) -> None:
    policy, _ = deployment(tmp_path)
    assert unkept(policy) == {}
    kept = read_policy(policy)
    assert honour_policy_contract(kept, []) == ()


@pytest.mark.parametrize(
    ("old", "new", "clause", "said"),
    [
        ('deployment = "test"', 'deployment = "other"', None, "contract of test"),
        ('location = "file:store"', 'location = "valkey://127.0.0.1:1"', None, "remote tier"),
        ('\ncompletions = "request"', '\ncompletions = "user"', "scope", "by request, and here it"),
        ('chat_completions = "conversation"', 'chat_completions = "tenant"', "scope", "by tenant"),
        ("# Routes that exist", 'messages = "request"\n# Routes', "scope", "nothing is promised"),
        ("max_age_s = 86400", "max_age_s = 86401", "lifetime", "86,401 s"),
        ("request_s = 300", "request_s = 571", "erasure", "after 601 s"),
        ("share_bytes = 536870912", "share_bytes = 4294967", "interference", "share of 0.1"),
        ('location = "file:store"', 'location = "file:store"\nequivalences = "x"', "binding", "ot"),
        ("[levels]", "[engine]\nallow_reload = true\n[levels]", "binding", "running engine"),
    ],
)  # fmt: skip
def test_policy_wider_than_its_contract_names_the_clause(
    tmp_path: Path, old: str, new: str, clause: str | None, said: str
) -> None:
    policy, _ = deployment(tmp_path)
    edit(policy, old, new)
    found = unkept(policy)
    assert clause in found
    assert said in found[clause]
    with pytest.raises(ConfigError, match="cannot be honoured"):
        honour_policy_contract(read_policy(policy), [])


@pytest.mark.parametrize(
    ("old", "new", "clause", "said"),
    [
        ('"conversation"\nleading', '"request"\nleading', "scope", "by request, and here"),
        ('identity = ["api-key"]', 'identity = ["mtls"]', "origin", "by mtls"),
        ('visible = ["own-usage"]', "visible = []", "metadata", "Usage"),
        ("max_age_s = 86400", "max_age_s = 3600", "lifetime", "after 3,600 s"),
        ("within_s = 600", "within_s = 60", "erasure", "within 60 s"),
        ("protected_share = 0.1", "protected_share = 0.2", "interference", "share of 0.2"),
        ('on_bad_state = "recompute"', 'on_bad_state = "refuse"', "untrusted", "again"),
        ('on_loss = "recompute"', 'on_loss = "refuse"', "failure", "again"),
        ('"not-covered", disk = "enforced" }\nmax', '"enforced", disk = "enforced" }\nmax',
         "lifetime", "no age"),
        ('"not-covered", disk = "enforced" }\nenc', '"enforced", disk = "enforced" }\nenc',
         "secrecy", "not encrypted"),
        ('{ device = "enforced", disk = "enforced" }\nset', '{ host = "enforced" }\nset',
         "origin", "keeps nothing there"),
    ],
)  # fmt: skip
def test_contract_that_promises_more_than_is_so_names_the_clause(
    tmp_path: Path, old: str, new: str, clause: str, said: str
) -> None:
    policy, contract = deployment(tmp_path)
    edit(contract, old, new)
    found = unkept(policy)
    assert set(found) == {clause}
    assert said in found[clause]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max_age_s = 86400", "max_age_s = 60"),
        ("request_s = 300", "request_s = 1"),
        ('chat_completions = "conversation"', 'chat_completions = "request"'),
        ("share_bytes = 536870912", "share_bytes = 4294967296"),
    ],
)
def test_policy_narrower_than_its_contract_starts(tmp_path: Path, old: str, new: str) -> None:
    policy, _ = deployment(tmp_path)
    edit(policy, old, new)
    assert unkept(policy) == {}


def test_level_of_one_model_counts_though_another_row_is_wider(tmp_path: Path) -> None:
    policy, contract = deployment(tmp_path)
    with contract.open("a") as file:
        file.write(
            '\n[[clauses.scope.routes]]\nroute = "chat_completions"\nmodel = "m"\nlevel = "request"'
        )
    assert "chat_completions for m" in unkept(policy)["scope"]


def test_wide_system_messages_need_a_wide_leading_level(tmp_path: Path) -> None:
    policy, contract = deployment(tmp_path)
    with policy.open("a") as file:
        file.write('\n[spans]\nsystem = "tenant"\n')
    assert unkept(policy) == {}
    edit(contract, 'leading_level = "tenant"\n', "")
    assert "System messages of chat_completions" in unkept(policy)["scope"]


def test_public_prefix_is_listed_by_the_digest_of_its_tokens(tmp_path: Path) -> None:
    policy, contract = deployment(tmp_path)
    (tmp_path / "p.json").write_text(json.dumps([1, 2, 3]))
    with policy.open("a") as file:
        file.write('\n[[public_prefixes]]\nname = "p"\ntoken_ids_file = "p.json"\n')
    assert "prefix p is shared by everybody" in unkept(policy)["scope"]
    digest = prefix_digest(RegisteredPrefix(name="p", token_ids=(1, 2, 3)))
    with contract.open("a") as file:
        file.write(f'\n[[clauses.scope.public]]\nname = "p"\ndigest = "{digest}"\n')
    assert unkept(policy) == {}
    (tmp_path / "p.json").write_text(json.dumps([1, 2, 4]))
    assert "scope" in unkept(policy)


def test_without_a_keyring_neither_epochs_nor_erasure_are_promised(tmp_path: Path) -> None:
    _, policy = write_policy(tmp_path)
    text = EXAMPLE.read_text().replace('"example"', '"test"', 1)
    (tmp_path / "contract.toml").write_text(text)
    found = unkept(policy)
    assert "no epochs" in found["scope"]
    assert "nothing can be erased" in found["erasure"]
    assert "keeps nothing there" in found["secrecy"]


def test_exception_lifts_its_clause_until_its_last_day(tmp_path: Path) -> None:
    policy, contract = deployment(tmp_path)
    edit(policy, "max_age_s = 86400", "max_age_s = 90000")
    with contract.open("a") as file:
        file.write('\n[[exceptions]]\nclause = "lifetime"\nwhat = "x"\nuntil = 2026-12-10\n')
    kept = read_policy(policy)
    promise = read_contract(contract)
    found = list(find_unkept(promise, kept.settings, []))
    (note,) = refuse_unkept(promise, found, today=TODAY)
    assert "excepted until 2026-12-10" in note
    with pytest.raises(ConfigError, match="lifetime"):
        refuse_unkept(promise, found, today=date(2026, 12, 11))


def test_contract_that_ended_is_said_and_stops_nobody(tmp_path: Path) -> None:
    promise = read_contract(deployment(tmp_path)[1])
    (note,) = refuse_unkept(promise, [], today=date(2027, 3, 4))
    assert "ended on 2027-03-03" in note
    assert refuse_unkept(promise, [], today=date(2027, 3, 3)) == ()


def test_missing_or_broken_contract_is_refused(tmp_path: Path) -> None:
    policy, contract = deployment(tmp_path)
    contract.write_text("format = 1")
    with pytest.raises(ContractError):
        honour_policy_contract(read_policy(policy), [])
    contract.unlink()
    with pytest.raises(ContractError, match="cannot be read"):
        honour_policy_contract(read_policy(policy), [])


@pytest.mark.parametrize(
    "command",
    [("gateway", "check"), ("serve", "--upstream", "http://127.0.0.1:9", "--config")],
)
def test_commands_refuse_and_name_every_clause(tmp_path: Path, command: tuple[str, ...]) -> None:
    policy, _ = deployment(tmp_path)
    edit(policy, "max_age_s = 86400", "max_age_s = 90000")
    edit(policy, '\ncompletions = "request"', '\ncompletions = "tenant"')
    with pytest.raises(ConfigError) as caught:
        cli.main([*command, str(policy)], standalone_mode=False)
    assert re.search(r"version 1.*\n  scope: .*\n  lifetime: ", caught.value.message)
    assert caught.value.hint is not None
    assert "max_age_s" in caught.value.hint
    assert "[levels]" in caught.value.hint


async def test_ward_inside_an_engine_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warded = make_warded(tmp_path, monkeypatch)
    contract = tmp_path / "contract.toml"
    contract.write_text(EXAMPLE.read_text())
    policy = tmp_path / "policy.toml"
    policy.write_text('contract = "contract.toml"\n' + policy.read_text())
    answer = await warded.call("/v1/completions", {"model": "m", "prompt": "x"}, who="a")
    assert answer.status == 503


def test_check_tells_of_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy, contract = deployment(tmp_path)
    edit(contract, "valid_until = 2027-03-03", "valid_until = 2026-12-03")
    edit(contract, "published = 2026-12-03", "published = 2026-12-02")
    cli.main(["gateway", "check", str(policy), "--json"], standalone_mode=False)
    said = json.loads(capsys.readouterr().out)
    assert said["contract"] == "contract.toml"


def test_settings_of_an_adapter_are_checked_alone(tmp_path: Path) -> None:
    policy, contract = deployment(tmp_path)
    kept = read_policy(policy)
    assert isinstance(kept, Kept)
    assert list(find_unkept(read_contract(contract), kept.settings, [])) == []
