"""The operator's controls: they worked, or nothing is measured after them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiohttp import web

from kvward.audit.target import controls as module
from kvward.audit.target.controls import (
    Command,
    Control,
    Controls,
    flush_command,
    load_controls,
)
from kvward.errors import ConfigError, TargetUnreachableError

WRITE = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:]))"


class Target:
    """Comes back at the given question, or never."""

    def __init__(self, back_at: int | None = 1) -> None:
        self._back_at, self.num_asked = back_at, 0

    async def answers(self) -> bool:
        self.num_asked += 1
        return self._back_at is not None and self.num_asked >= self._back_at


def run(controls: Controls, control: Control, target: Target, **values: str) -> str:
    return asyncio.run(controls.run(control, target, **values))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "controls.toml"
    path.write_text(text)
    return path


def load(tmp_path: Path, text: str, environ: Mapping[str, str] | None = None) -> Controls:
    return load_controls(write(tmp_path, "version = 1\n" + text), environ=environ or {})


@pytest.mark.parametrize("command", ["", "   ", "echo 'x", "''"])
def test_command_that_cannot_be_read_is_refused(command: str) -> None:
    with pytest.raises(ConfigError):
        flush_command(command)


def test_short_form_runs_without_a_shell_and_the_target_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.001)
    target = Target(3)
    controls = flush_command(f"{sys.executable} -c \"{WRITE}\" {tmp_path / 'x'} '$HOME; a b'")
    assert Control.FLUSH_DEVICE in controls
    run(controls, Control.FLUSH_DEVICE, target)
    assert (tmp_path / "x").read_text() == "$HOME; a b"
    assert target.num_asked == 3


def test_placeholders_are_filled_inside_words_and_never_make_new_ones(tmp_path: Path) -> None:
    controls = load(
        tmp_path,
        f'[erase]\ncommand = ["{sys.executable}", "-c", "{WRITE}", "{tmp_path / "x"}", '
        '"--tenant={tenant}", "{conversation}", "{ not this }", "$(touch y)"]\n',
    )
    run(controls, Control.ERASE, Target(), tenant="acme-1", conversation="s3-17")
    assert (tmp_path / "x").read_text() == "--tenant=acme-1 s3-17 { not this } $(touch y)"


@pytest.mark.parametrize("value", ["", "a b", "a;b", "$(x)", "../x", "a\n", "ä", "a" * 129, "{x}"])
def test_value_that_could_mean_something_else_is_not_filled_in(tmp_path: Path, value: str) -> None:
    controls = load(tmp_path, '[erase]\ncommand = ["true", "{tenant}"]\n')
    with pytest.raises(ConfigError, match="tenant") as caught:
        run(controls, Control.ERASE, Target(), tenant=value)
    assert not value or value not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[flush-device]\ncommand = []\n", "empty"),
        ("[flush-device]\n", "command or a url"),
        ('[flush-device]\ncommand = "x"\nurl = "http://h"\n', "command or a url"),
        ('[flush-device]\ncommand = "x"\ntimeout_s = 0\n', "timeout_s"),
        ('[flush-device]\ncommand = "x"\nshell = true\n', "shell"),
        ('[restart]\ncommand = "x"\nempties_in_place = true\n', "empties_in_place"),
        ("[flush-device]\ncommand = 7\n", "not understood"),
        ('[explode]\ncommand = "x"\n', "no control"),
        ('[erase]\nurl = "file:///etc/passwd"\n', "not one"),
        ('[erase]\nurl = "http://h/{nobody}"\n', "nobody"),
        ('[flush-device]\ncommand = "x {tenant}"\n', "tenant"),
        ('[erase]\nurl = "http://h"\nheaders = { a = "env:NO_SUCH" }\n', "NO_SUCH"),
        ("[[flush-device]]\ncommand = 'x'\n", "not understood"),
        ("[flush-device\n", "cannot be read"),
    ],
)
def test_file_that_is_not_understood_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, text)


def test_file_of_another_version_is_refused(tmp_path: Path) -> None:
    for text in ("", "version = 2\n", 'version = "1"\n'):
        with pytest.raises(ConfigError, match="version"):
            load_controls(write(tmp_path, text))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_controls(tmp_path / "none.toml")


@pytest.mark.parametrize("command", ["false", "no-such-command-anywhere"])
def test_command_that_fails_ends_the_run(command: str) -> None:
    target = Target()
    with pytest.raises(ConfigError):
        run(flush_command(command), Control.FLUSH_DEVICE, target)
    assert target.num_asked == 0


def test_error_says_what_the_command_said_without_secrets(tmp_path: Path) -> None:
    code = "import sys; print('\\x1b[31mno room for s3cr3t-token'); sys.exit(7)"
    controls = Controls(
        {Control.RESTART: Command(words=(sys.executable, "-c", code))},
        secrets=frozenset({"s3cr3t-token"}),
    )
    with pytest.raises(ConfigError) as caught:
        run(controls, Control.RESTART, Target())
    hidden = Controls({Control.RESTART: Command(words=(sys.executable, "-c", code))})
    with pytest.raises(ConfigError) as also:
        run(hidden.hiding(["s3cr3t-token"]), Control.RESTART, Target())
    assert also.value.message == caught.value.message
    assert "exit code 7" in caught.value.message
    assert "no room for ***" in caught.value.message
    assert "s3cr3t" not in caught.value.message + repr(controls)
    assert caught.value.message.isprintable()


def test_target_that_stays_away_ends_the_run(tmp_path: Path) -> None:
    controls = load(tmp_path, '[flush-device]\ncommand = "true"\nback_within_s = 0.01\n')
    with pytest.raises(TargetUnreachableError):
        run(controls, Control.FLUSH_DEVICE, Target(None))


def test_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    late = tmp_path / "late"
    controls = load(
        tmp_path,
        f'[flush-device]\ncommand = ["sh", "-c", "sleep 0.6 && touch {late} & wait"]\n'
        "timeout_s = 0.1\n",
    )
    with pytest.raises(ConfigError, match=r"did not end within 0.1 s"):
        run(controls, Control.FLUSH_DEVICE, Target())
    time.sleep(0.9)
    assert not late.exists()


def test_engine_that_the_command_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    controls = load(
        tmp_path, '[restart]\ncommand = ["sh", "-c", "sleep 3 & echo started"]\ntimeout_s = 2\n'
    )
    began = time.monotonic()
    assert run(controls, Control.RESTART, Target()) == "started\n"
    assert time.monotonic() - began < 2


def test_only_a_flush_is_vouched_for_and_only_in_the_file(tmp_path: Path) -> None:
    assert not flush_command("true").empties_in_place
    assert not load(tmp_path, '[restart]\ncommand = "true"\n').empties_in_place
    for action in ('command = "true"', 'url = "http://127.0.0.1:9/"'):
        text = f"[flush-device]\n{action}\n"
        assert not load(tmp_path, text).empties_in_place
        assert load(tmp_path, text + "empties_in_place = true\n").empties_in_place
        assert load(tmp_path, text + "empties_in_place = true\n").hiding(["k"]).empties_in_place


def test_control_that_nobody_gave_says_how_to_give_it() -> None:
    with pytest.raises(ConfigError) as caught:
        run(Controls({}), Control.ERASE, Target())
    assert "[erase]" in (caught.value.hint or "")


async def test_url_is_asked_with_secrets_from_the_environment_and_filled_values(
    tmp_path: Path,
) -> None:
    seen: list[tuple[str, str, str, object]] = []

    async def handle(request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        auth = request.headers.get("authorization", "")
        seen.append((request.method, request.path_qs, auth, body))
        if request.path.startswith("/bad"):
            return web.Response(status=500, text=f"no {auth}")
        return web.Response(text="kept-1\nkept-2\n")

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        controls = load(
            tmp_path,
            f'[erase]\nurl = "{url}/tenants/{{tenant}}"\nmethod = "DELETE"\n'
            'headers = { authorization = "env:ADMIN" }\nbody = { c = "{conversation}", n = 1 }\n'
            f'[list-store]\nurl = "{url}/list"\nmethod = "GET"\n'
            f'[restart]\nurl = "{url}/bad"\nheaders = {{ authorization = "env:ADMIN" }}\n'
            '[swap-adapter]\nurl = "http://127.0.0.1:9/x"\ntimeout_s = 1\n',
            {"ADMIN": "Bearer t0ps3cret"},
        )
        target = Target()
        await controls.run(Control.ERASE, target, tenant="a", conversation="c1")
        listed = await controls.run(Control.LIST_STORE, target)
        assert listed.split() == ["kept-1", "kept-2"]
        assert seen[0] == ("DELETE", "/tenants/a", "Bearer t0ps3cret", {"c": "c1", "n": 1})
        assert seen[1][:2] == ("GET", "/list")
        with pytest.raises(ConfigError, match="HTTP 500") as caught:
            await controls.run(Control.RESTART, target)
        assert "t0ps3cret" not in caught.value.message + repr(controls)
        assert "It said: no ***" in caught.value.message
        with pytest.raises(ConfigError, match="did not answer"):
            await controls.run(Control.SWAP_ADAPTER, target)
    finally:
        await runner.cleanup()
