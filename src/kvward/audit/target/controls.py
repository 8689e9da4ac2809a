"""What a black box cannot do to itself: flush, restart, erase, swap an adapter, list its store.

The operator says how in a TOML file; each control is a command or a URL:

```toml
version = 1

[flush-device]
command = ["systemctl", "restart", "engine"]
timeout_s = 300

[erase]
url = "http://127.0.0.1:9000/tenants/{tenant}/conversations/{conversation}"
method = "DELETE"
headers = { authorization = "env:ADMIN_TOKEN" }
```

A command never meets a shell: a list is taken word by word, a string is split into words first.
Placeholders are filled inside single words, and only with letters, digits, dot, hyphen and
underscore. A control runs when a planned cell needs it, and then the target is awaited.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from secrets import randbits
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec

from kvward.audit.target.filling import fill, placeholders
from kvward.audit.target.scrub import Scrubber
from kvward.audit.target.wire import WireError, read_whole
from kvward.errors import ConfigError, TargetUnreachableError

BACK_WITHIN_S = 600.0
POLL_S = 0.5
_DEFAULT_TIMEOUT_S = 600.0
_MAX_OUTPUT_BYTES = 4 << 20
_SAFE_VALUE = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
_ENVIRONMENT = "env:"
_NUMBER_BITS = 31


class Control(StrEnum):
    """Something that only the operator can do to the target."""

    FLUSH_DEVICE = "flush-device"
    RESTART = "restart"
    ERASE = "erase"
    SWAP_ADAPTER = "swap-adapter"
    LIST_STORE = "list-store"


PLACEHOLDERS: Mapping[Control, frozenset[str]] = {
    Control.FLUSH_DEVICE: frozenset(),
    Control.RESTART: frozenset(),
    Control.ERASE: frozenset({"tenant", "conversation"}),
    Control.SWAP_ADAPTER: frozenset({"adapter", "number"}),
    Control.LIST_STORE: frozenset({"tenant", "conversation"}),
}
"""What may be filled into each control. `number` is another one for each run."""


class Awaited(Protocol):
    """What is waited for after a control."""

    async def answers(self) -> bool:
        """Tell whether it answers now."""


Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    command: list[str] | str | None = None
    url: str | None = None
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[str, str] = {}
    body: dict[str, Any] | None = None
    timeout_s: Seconds = _DEFAULT_TIMEOUT_S
    back_within_s: Seconds = BACK_WITHIN_S
    empties_in_place: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A control that is a program.

    Attributes:
        words: Its arguments, never seen by a shell.
        empties_in_place: The operator vouches that the device is empty after it, although the
            target goes on answering.
    """

    words: tuple[str, ...]
    timeout_s: float = _DEFAULT_TIMEOUT_S
    back_within_s: float = BACK_WITHIN_S
    empties_in_place: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ControlRequest:
    """A control that is an HTTP request.

    Attributes:
        headers: May have placeholders.
        secret_headers: As they are. [secret]
        empties_in_place: As of a command.
    """

    url: str
    method: str
    headers: Mapping[str, str]
    body: Mapping[str, Any] | None
    secret_headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = _DEFAULT_TIMEOUT_S
    back_within_s: float = BACK_WITHIN_S
    empties_in_place: bool = False


class Controls:
    """The controls that an operator has given.

    Args:
        actions: What each control does.
        secrets: Never shown in what a control is reported to have said. [secret]
    """

    def __init__(
        self,
        actions: Mapping[Control, Command | ControlRequest],
        *,
        secrets: frozenset[str] = frozenset(),
    ) -> None:
        self._actions = dict(actions)
        self._secrets = secrets
        self._scrub = Scrubber(secrets)

    def __repr__(self) -> str:
        """Name the controls, not what they hold."""
        return f"<Controls {', '.join(self._actions)}>"

    def hiding(self, secrets: Iterable[str]) -> Controls:
        """Return the same controls, which show none of these either. [secret]"""
        return Controls(self._actions, secrets=self._secrets.union(secrets))

    def __contains__(self, control: object) -> bool:
        return control in self._actions

    @property
    def names(self) -> tuple[Control, ...]:
        """Return which controls there are."""
        return tuple(self._actions)

    @property
    def empties_in_place(self) -> bool:
        """Tell whether the operator vouches for a flush that the target answers through."""
        action = self._actions.get(Control.FLUSH_DEVICE)
        return action is not None and action.empties_in_place

    async def run(self, control: Control, target: Awaited, **values: str) -> str:
        """Carry a control out and wait until the target answers again.

        Args:
            values: For the placeholders, such as `tenant` and `conversation`.
        Returns:
            What it said, at most 4 MiB. [untrusted]
        Raises:
            ConfigError: There is no such control, a value cannot be filled in safely, or it
                failed; whatever is measured after that says nothing.
            TargetUnreachableError: The target did not come back.
        """
        action = self._actions.get(control)
        if action is None:
            raise ConfigError(
                f"Nothing says how to {control}.",
                hint=f"Add a section [{control}] to the file of --controls.",
            )
        for name, value in values.items():
            if not _SAFE_VALUE.fullmatch(value):
                raise ConfigError(
                    f"The {name} of the control {control} has characters that are not filled in.",
                    hint="Letters, digits, dot, hyphen and underscore are.",
                )
        filled: dict[str, str | int] = {**values, "number": randbits(_NUMBER_BITS)}
        if isinstance(action, Command):
            said = await self._run_command(control, action, filled)
        else:
            said = await self._ask(control, action, filled)
        await _wait_until_back(control, target, action.back_within_s)
        return said

    async def _run_command(
        self, control: Control, action: Command, values: Mapping[str, str | int]
    ) -> str:
        words = [str(fill(word, values)) for word in action.words]
        # A file and not a pipe: an engine that the command leaves running holds its output open.
        with tempfile.TemporaryFile() as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as exc:
                raise ConfigError(
                    f"The command of the control {control} did not run: {exc.strerror}.",
                    hint=f"It begins with {self._scrub(words[0])}",
                ) from exc
            try:
                code = await asyncio.wait_for(process.wait(), action.timeout_s)
            except BaseException as exc:
                _end_group(process.pid)
                await process.wait()
                if isinstance(exc, TimeoutError):
                    raise ConfigError(
                        f"The command of the control {control} did not end within "
                        f"{action.timeout_s:g} s."
                    ) from exc
                raise
            output.seek(0)
            said = output.read(_MAX_OUTPUT_BYTES).decode("utf-8", "replace")
        if code != 0:
            raise ConfigError(
                f"The command of the control {control} ended with exit code {code}."
                + self._quote(said),
                hint="Nothing was measured after it. Try it by hand.",
            )
        return said

    async def _ask(
        self, control: Control, action: ControlRequest, values: Mapping[str, str | int]
    ) -> str:
        timeout = aiohttp.ClientTimeout(total=action.timeout_s)
        url = str(fill(action.url, values))
        body = None if action.body is None else fill(action.body, values)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(
                    action.method,
                    url,
                    headers={
                        name: str(fill(value, values)) for name, value in action.headers.items()
                    }
                    | dict(action.secret_headers),
                    json=body,
                    allow_redirects=False,
                ) as response,
            ):
                status = response.status
                raw = await read_whole(response.content.iter_any(), max_bytes=_MAX_OUTPUT_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, WireError) as exc:
            name = "too much was answered" if isinstance(exc, WireError) else type(exc).__name__
            raise ConfigError(
                f"The URL of the control {control} did not answer ({name}).",
                hint="Nothing was measured after it.",
            ) from exc
        said = raw.decode("utf-8", "replace")
        if not 200 <= status < 300:
            raise ConfigError(
                f"The URL of the control {control} answered with HTTP {status}."
                + self._quote(said),
                hint="Nothing was measured after it.",
            )
        return said

    def _quote(self, said: str) -> str:
        text = self._scrub(said[-4_000:])
        return f" It said: {text}" if text else ""


def flush_command(text: str) -> Controls:
    """Return the controls of `--flush-device COMMAND`.

    Raises:
        ConfigError: The command cannot be read as words.
    """
    words = _words(text, "--flush-device")
    return Controls({Control.FLUSH_DEVICE: Command(words=words)})


def load_controls(path: Path, *, environ: Mapping[str, str] = os.environ) -> Controls:
    """Read a controls file.

    Args:
        environ: Holds what `env:VARIABLE` in headers names. [secret]
    Raises:
        ConfigError: The file cannot be read, has unknown sections or fields, names a variable
            that is not set, or has a placeholder that its control does not fill.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"The controls {path} cannot be read: {exc}.") from exc
    if raw.pop("version", None) != 1:
        raise ConfigError(
            f"The controls {path} are of no version that is understood.",
            hint="Begin the file with: version = 1",
        )
    actions: dict[Control, Command | ControlRequest] = {}
    secrets: set[str] = set()
    for name, section in raw.items():
        if name not in set(Control):
            raise ConfigError(
                f"{path} has a section [{name}] that is no control.",
                hint="There are: " + ", ".join(Control),
            )
        try:
            document = msgspec.convert(section, _Document)
        except msgspec.ValidationError as exc:
            raise ConfigError(f"[{name}] in {path} is not understood: {exc}.") from exc
        actions[Control(name)] = _to_action(Control(name), document, environ, secrets)
    return Controls(actions, secrets=frozenset(secrets))


def _to_action(
    control: Control, document: _Document, environ: Mapping[str, str], secrets: set[str]
) -> Command | ControlRequest:
    if (document.command is None) is (document.url is None):
        raise ConfigError(f"The control {control} is a command or a url, one of them.")
    if document.empties_in_place and control is not Control.FLUSH_DEVICE:
        raise ConfigError(f"empties_in_place says nothing about the control {control}.")
    plain = {k: v for k, v in document.headers.items() if not v.startswith(_ENVIRONMENT)}
    asked = placeholders([document.command or "", document.url or "", document.body or {}, plain])
    strange = sorted(asked - PLACEHOLDERS[control])
    if strange:
        known = ", ".join(f"{{{name}}}" for name in sorted(PLACEHOLDERS[control])) or "none"
        raise ConfigError(
            f"The control {control} does not fill {{{strange[0]}}}.", hint=f"It fills: {known}."
        )
    if document.command is not None:
        return Command(
            words=_words(document.command, f"the control {control}"),
            timeout_s=document.timeout_s,
            back_within_s=document.back_within_s,
            empties_in_place=document.empties_in_place,
        )
    assert document.url is not None  # noqa: S101 - one of the two
    if urlsplit(document.url).scheme not in {"http", "https"}:
        raise ConfigError(f"The url of the control {control} is not one.")
    secret_headers = {}
    for name in document.headers.keys() - plain:
        variable = document.headers[name].removeprefix(_ENVIRONMENT)
        held = environ.get(variable)
        if not held:
            raise ConfigError(f"The environment variable {variable} is not set.")
        secrets.add(held)
        secret_headers[name] = held
    return ControlRequest(
        url=document.url,
        method=document.method,
        headers=plain,
        secret_headers=secret_headers,
        body=document.body,
        timeout_s=document.timeout_s,
        back_within_s=document.back_within_s,
        empties_in_place=document.empties_in_place,
    )


def _words(command: list[str] | str, where: str) -> tuple[str, ...]:
    if isinstance(command, str):
        try:
            command = shlex.split(command)
        except ValueError as exc:
            raise ConfigError(f"The command of {where} cannot be read: {exc}.") from exc
    if not command or not command[0]:
        raise ConfigError(f"The command of {where} is empty.")
    return tuple(command)


def _end_group(pid: int) -> None:
    """End what the command started and has not left behind in a session of its own."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


async def _wait_until_back(control: Control, target: Awaited, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not await target.answers():
        if time.monotonic() >= deadline:
            raise TargetUnreachableError(f"The target did not come back after {control}.")
        await asyncio.sleep(POLL_S)
