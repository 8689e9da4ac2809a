"""Empty the device tier of a target by the operator's own command, and wait until it is back."""

from __future__ import annotations

import asyncio
import shlex
import time

from kvward.audit.target import Target
from kvward.errors import ConfigError, TargetUnreachableError

_COMMAND_S = 600.0
_BACK_S = 600.0
_POLL_S = 0.5


class DeviceFlush:
    """Runs a command, without a shell, and waits for the target.

    Args:
        command: Of the operator's; its exit code must be 0.
    Raises:
        ConfigError: The command cannot be read as words.
    """

    def __init__(self, command: str, target: Target) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as exc:
            raise ConfigError(f"The command of --flush-device cannot be read: {exc}.") from exc
        if not self._words:
            raise ConfigError("The command of --flush-device is empty.")
        self._target = target

    async def __call__(self) -> None:
        """Flush.

        Raises:
            ConfigError: The command failed; whatever is measured after that says nothing.
            TargetUnreachableError: The target did not come back.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words, stdin=asyncio.subprocess.DEVNULL
            )
        except OSError as exc:
            raise ConfigError(f"The command of --flush-device did not run: {exc}.") from exc
        try:
            code = await asyncio.wait_for(process.wait(), _COMMAND_S)
        except TimeoutError as exc:
            process.kill()
            await process.wait()
            raise ConfigError(
                f"The command of --flush-device did not end within {_COMMAND_S:.0f} s."
            ) from exc
        if code != 0:
            raise ConfigError(
                f"The command of --flush-device ended with exit code {code}.",
                hint="Nothing was measured after it. Try it by hand.",
            )
        deadline = time.monotonic() + _BACK_S
        while not await self._target.answers():
            if time.monotonic() >= deadline:
                raise TargetUnreachableError("The target did not come back after --flush-device.")
            await asyncio.sleep(_POLL_S)
