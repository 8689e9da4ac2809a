"""What a child does to a log until it is ended, and what must hold afterwards."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

from attacks.crash.journal import Journal, read_journal
from kvward.errors import LedgerError
from kvward.ledger import append as append_module
from kvward.ledger.append import LogAppender, begin_log
from kvward.ledger.checkpoint import Checkpoint
from kvward.ledger.entry import EventsCounted, encode_entry
from kvward.ledger.names import CountedEvent
from kvward.ledger.note import NoteSigner
from kvward.ledger.tiles import LogFolder
from kvward.ledger.verify import verify_log
from kvward.ledger.writer import LedgerWriter

SIGNER = NoteSigner("crash/one", bytes(range(32)))
GOOD = "writer"
BAD = ("checkpoint-first", "early", "in-place")


def prepare(folder: Path) -> None:
    """Begin the log, if it is not there."""
    if not (folder / "log").exists():
        begin_log(folder / "log", SIGNER)


class Work:
    """Appends at random. What it notes was acknowledged to it.

    Args:
        folder: Of the log and the journal.
        kind: `GOOD`, or one of `BAD`: publishes before it has written, acknowledges before it has
            published, replaces the checkpoint without a rename.
    """

    def __init__(self, folder: Path, kind: str, rng: random.Random, journal: Journal) -> None:
        self._rng, self._journal = rng, journal
        self._is_early = kind == "early"
        if kind == "checkpoint-first":
            LogAppender.append = _append_checkpoint_first  # type: ignore[method-assign]
        if kind == "in-place":
            append_module.publish_file = lambda path, data: append_module.write_files(
                path.parent, {path.name: data}
            )
        linger_s = rng.choice([0.0, 0.002])
        self._writer = LedgerWriter(
            folder / "log", SIGNER, known=None, linger_s=linger_s, queue_entries=2000
        )

    def step(self) -> None:
        """Append one entry, or some, or many, and wait for them or not."""
        how = self._rng.choices(("one", "some", "many", "flush"), (50, 20, 10, 20))[0]
        if how == "one":
            entry = self._draw()
            if self._is_early:
                index = self._writer.append(entry)
            else:
                index = self._writer.append_durable(entry)
            if index is not None:
                self._acknowledge(index, encode_entry(entry))
            return
        if how != "flush":
            for _ in range(self._rng.randint(2, 20 if how == "some" else 700)):
                self._writer.append(self._draw())
            return
        checkpoint = self._writer.flush()
        self._journal.write(size=checkpoint.size, root=checkpoint.root.hex())

    def close(self) -> None:
        """Write what waits."""
        self._writer.close()

    def _draw(self) -> EventsCounted:
        return EventsCounted(
            at_unix_ms=self._rng.randrange(2**40),
            name=CountedEvent.STORE_REFUSED,
            reason=None,
            count=1 + self._rng.randrange(2**50),
            window_ms=0,
        )

    def _acknowledge(self, index: int, data: bytes) -> None:
        self._journal.write(index=index, digest=hashlib.sha256(data).hexdigest())


def find_problems(folder: Path, found: Counter[str]) -> list[str]:
    """Return what does not hold of a log whose writer was ended.

    The log verifies as it lies there, and again after it was opened for writing; everything that
    was acknowledged is in it, at its place.
    """
    lines = [line for line in read_journal(folder / "journal") if line.keys() & {"index", "size"}]
    problems = []
    for when in ("after the end", "after opening"):
        try:
            problems += [f"{words} {when}" for words in _look(folder / "log", lines, found)]
            if when == "after the end":
                writer = LedgerWriter(folder / "log", SIGNER, known=None, linger_s=0)
                before = writer.checkpoint.size
                found["writers that opened what was left"] += 1
                found["tails that were cut, and said to be"] += writer.flush().size > before
                writer.close()
        except LedgerError as exc:
            problems.append(f"{exc.code} {when}")
    return problems


def _look(log: Path, lines: list[dict[str, Any]], found: Counter[str]) -> list[str]:
    known = [
        Checkpoint(SIGNER.name, line["size"], bytes.fromhex(line["root"]))
        for line in lines
        if "size" in line
    ]
    size = verify_log(log, [SIGNER.verifier], known[-1] if known else None).checkpoint.size
    entries = [hashlib.sha256(entry).hexdigest() for entry in LogFolder(log).iter_entries(size)]
    found["entries verified"] += size
    problems = []
    for line in lines:
        if "index" in line:
            found["acknowledged entries looked for"] += 1
            if line["index"] >= size:
                problems.append("an acknowledged entry is lost")
            elif entries[line["index"]] != line["digest"]:
                problems.append("an acknowledged entry is another one")
    return problems


def _append_checkpoint_first(self: LogAppender, entries: Any, **settings: Any) -> Checkpoint:
    """A bad one: what the checkpoint covers is written after it."""
    write_files, later = append_module.write_files, []
    append_module.write_files = lambda *arguments: later.append(arguments)
    try:
        checkpoint = _APPEND(self, entries, **settings)
    finally:
        append_module.write_files = write_files
    for arguments in later:
        write_files(*arguments)
    return checkpoint


_APPEND = LogAppender.append
