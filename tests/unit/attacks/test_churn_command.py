"""The command: wrong usage, targets that may not be loaded, nobody there."""

from pathlib import Path

import pytest
from attacks.churn.__main__ import main

from kvward.cli.credential import is_loopback
from kvward.cli.process import free_port

TENANTS = ["--tenant", "a=first-secret", "--tenant", "b=second-secret"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["http://127.0.0.1:1"],
        ["http://127.0.0.1:1", "--tenant", "a=first-secret"],
        ["http://127.0.0.1:1", "--tenant", "a=first-secret", "--tenant", "b=first-secret"],
        ["http://127.0.0.1:1", "--tenant", "a=first-secret", "--tenant", "a=second-secret"],
        ["http://127.0.0.1:1", "--tenant", "first-secret", "--tenant", "b=second-secret"],
        ["http://127.0.0.1:1", "--tenant", "a=env:NOT_SET", "--tenant", "b=second-secret"],
        ["http://127.0.0.1:1", *TENANTS, "--clients", "1"],
        ["http://127.0.0.1:1", *TENANTS, "--clients", "1000"],
        ["http://127.0.0.1:1", *TENANTS, "--seconds", "0"],
        ["http://127.0.0.1:1", *TENANTS, "--max-tokens", "8192"],
        ["http://127.0.0.1:1", *TENANTS, "--json", "no-such-folder/file.json"],
        ["http://192.0.2.1:80", *TENANTS],
        ["http://127.0.0.1.example.org", *TENANTS],
        ["http://127.0.0.1:1", *TENANTS, "--metrics-url", "http://192.0.2.1/metrics"],
        ["127.0.0.1:8000", *TENANTS],
    ],
)
def test_wrong_usage_ends_with_3_and_repeats_no_key(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 3
    assert "secret" not in capsys.readouterr().err


def test_nobody_there_ends_with_5(tmp_path: Path) -> None:
    json = tmp_path / "result.json"
    url = f"http://127.0.0.1:{free_port()}"
    assert main([url, *TENANTS, "--seconds", "1", "--json", str(json)]) == 5
    assert not json.exists()


def test_loopback_is_told_from_names_that_look_like_it() -> None:
    for url in ("http://127.0.0.1:1", "http://127.8.0.1", "http://[::1]:2", "http://localhost/v1"):
        assert is_loopback(url)
    for url in ("http://localhost.example.org", "http://10.0.0.1", "http://127.0.0.1@192.0.2.1"):
        assert not is_loopback(url)
