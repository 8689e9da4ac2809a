"""A PKCS#11 token in software, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

_MODULES = (
    "/usr/lib/softhsm/libsofthsm2.so",
    "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so",
    "/usr/local/lib/softhsm/libsofthsm2.so",
)


def find_softhsm() -> str | None:
    """Return the path of the library, None where SoftHSM is not installed."""
    if shutil.which("softhsm2-util") is None:
        return None
    return next((path for path in _MODULES if Path(path).exists()), None)


class SoftHSM:
    """A token named `label` with an AES-256 key for each of `keys`.

    The library reads its configuration once for each process: use it in one process for one token.
    """

    label, pin = "kvward-test", "5678"

    def __init__(self, *, keys: tuple[str, ...]) -> None:
        self._keys = keys
        self.module = find_softhsm() or ""

    def __enter__(self) -> Self:
        import pkcs11

        self._folder = tempfile.TemporaryDirectory(prefix="softhsm-")
        folder = Path(self._folder.name)
        (folder / "tokens").mkdir()
        (folder / "softhsm2.conf").write_text(
            f"directories.tokendir = {folder / 'tokens'}\nobjectstore.backend = file\n"
            "log.level = ERROR\n"
        )
        os.environ["SOFTHSM2_CONF"] = str(folder / "softhsm2.conf")
        subprocess.run(
            [
                *("softhsm2-util", "--init-token", "--free", "--label", self.label),
                *("--so-pin", "1234", "--pin", self.pin),
            ],
            check=True,
            capture_output=True,
        )
        token = pkcs11.lib(self.module).get_token(token_label=self.label)
        with token.open(user_pin=self.pin, rw=True) as session:
            for number, key in enumerate(self._keys):
                session.generate_key(
                    pkcs11.KeyType.AES,
                    256,
                    label=key,
                    id=bytes([number]),
                    store=True,
                    template={
                        pkcs11.Attribute.SENSITIVE: True,
                        pkcs11.Attribute.EXTRACTABLE: False,
                    },
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.environ.pop("SOFTHSM2_CONF", None)
        self._folder.cleanup()
