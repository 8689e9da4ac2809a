"""What a child says it is about to do, and has done: lines that outlive its end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]  # Any: whatever a workload notes


class Journal:
    """Appends to a file that several processes share.

    Args:
        path: Made if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **line: Any) -> None:
        """Append a line in one call, so that lines of two processes do not mix."""
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_journal(path: Path) -> list[Line]:
    """Return all lines; one that its writer could not finish is left out."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def keep_lines(path: Path, lines: Sequence[Line]) -> None:
    """Let a journal hold these lines and no others."""
    path.unlink(missing_ok=True)
    journal = Journal(path)
    for line in lines:
        journal.write(**line)
    journal.close()
