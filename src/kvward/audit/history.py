"""The history of an audit: every request and what was seen, as JSON Lines.

The first line is the plan, each further line one trial. It holds no key. Prompts are made of
code words and are named by what made them; of a target's text, words that are not ours are
replaced by a short digest, because they may be somebody's.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from kvward.audit.exchange import Ending, Reply
from kvward.audit.plan import FORMAT_VERSION, Plan, Route
from kvward.errors import AuditError, ConfigError
from kvward.terms import ProbeScope

_AROUND_WORDS = string.punctuation


class Arm(StrEnum):
    """The part a request plays."""

    CONTROL_WRITE = "control-write"
    CONTROL_READ = "control-read"
    WRITE = "write"
    READ = "read"
    TWIN = "twin"
    CANCEL = "cancel"
    RETRY = "retry"
    TURN = "turn"
    PRIME = "prime"
    PROBE_PRIMED = "probe-primed"
    PROBE_UNPRIMED = "probe-unprimed"
    CROWD = "crowd"
    DOOR = "door"
    SAVE = "save"
    RESTORE = "restore"
    PRIME_AGAIN = "prime-again"
    FLOOD = "flood"
    FLOOD_AGAIN = "flood-again"


CONTROL_ARMS = frozenset({Arm.CONTROL_WRITE, Arm.CONTROL_READ})
"""Own canaries, written and read back."""
SIDE_ARMS = frozenset(
    {Arm.DOOR, Arm.SAVE, Arm.RESTORE, Arm.PRIME_AGAIN, Arm.FLOOD, Arm.FLOOD_AGAIN}
)
"""Requests that are no output and no probe: no rate and no bound counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One request of the audit and what was seen of its answer.

    Attributes:
        scope: The probe scope of a pair, or of the crowd; None in the content phase.
        pair: Number of the pair inside its scope; None outside of pairs.
        coin: Which of the two prompts was primed, 1 or 2; None outside of pairs.
        first: Whether this probe was the first of its pair.
        prompt: Who made the prompt, for example "canary:a/c1:352:17"; repeats the words exactly.
        prompt_words: Number of words sent.
        own_words: The distinct words of the prompt; everything else is foreign.
        top_logprobs: As received, words that are not code words redacted.
        matched_tokens: Tokens of the prompt that a router in front says it knew.
        cache_hit: Whether a header says that the answer was a hit; None where none says.
        created_tokens: Tokens that the target says it wrote to a cache; None when it says nothing.
        route, replica: Where the request went; the replica is an index into the plan's, None
            where there is one address.
        num_retries: How often it was refused for now and sent again, with the same arm; its times
            are those of the last attempt.
        model: Which model the target says has answered.
        output_digest: First 16 hex digits of the SHA-256 of the text as it came.
        listed: Of each text that a side door showed its words, foreign ones redacted.
        unread_lists: Lists of numbers that a side door showed.
    """

    number: int
    arm: Arm
    tenant: str
    conversation: str
    scope: ProbeScope | None = None
    pair: int | None = None
    coin: int | None = None
    first: bool | None = None
    prompt: str
    prompt_words: int
    own_words: tuple[str, ...]
    ending: Ending
    status: int | None
    start_ns: int
    ttft_ns: int | None
    total_ns: int
    text: str
    top_logprobs: tuple[tuple[tuple[str, float], ...], ...]
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    response_ids: tuple[str, ...]
    error: str | None
    matched_tokens: int | None = None
    cache_hit: bool | None = None
    created_tokens: int | None = None
    route: Route = Route.COMPLETIONS
    replica: int | None = None
    num_retries: int = 0
    finish_reason: str | None = None
    model: str | None = None
    output_digest: str | None = None
    listed: tuple[str, ...] = ()
    unread_lists: int = 0

    @property
    def who(self) -> str:
        """Return who asked, "tenant/conversation"."""
        return f"{self.tenant}/{self.conversation}"

    @property
    def told_tokens(self) -> int | None:
        """Return the most reuse that the answer tells of, by usage, router or header.

        A hit without a number is one of the whole prompt; None where nothing tells.
        """
        hit = None if self.cache_hit is None else self.cache_hit * (self.prompt_tokens or 1)
        told = [n for n in (self.cached_tokens, self.matched_tokens, hit) if n is not None]
        return max(told, default=None)


class Redactor:
    """Replaces every word that is not a code word by a digest of eight hex digits.

    Args:
        words: The code words, lower case.
    """

    def __init__(self, words: frozenset[str]) -> None:
        self._words = words

    def knows(self, word: str) -> bool:
        """Tell whether a word is a code word."""
        return word in self._words

    def token(self, text: str) -> str:
        """Return a token as it may be kept, without surrounding white space."""
        word = text.strip()
        return word if word in self._words or not word else "#" + _digest(word)

    def text(self, text: str) -> str:
        """Return a text as it may be kept, words separated by single spaces.

        Code words lose what is written around them, such as a comma or a capital.
        """
        return " ".join(self._written(part) for part in text.split())

    def _written(self, part: str) -> str:
        bare = part.strip(_AROUND_WORDS).lower()
        return bare if bare in self._words else self.token(part)

    def top_logprobs(self, reply: Reply) -> tuple[tuple[tuple[str, float], ...], ...]:
        """Return the logprobs of a reply as they may be kept."""
        return tuple(
            tuple((self.token(token), value) for token, value in position)
            for position in reply.top_logprobs
        )


class HistoryFile:
    """Writes a history line by line, so that what was seen survives an interruption."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("wb")
        except OSError as exc:
            raise ConfigError(
                f"The history {path} cannot be written: {exc.strerror}.",
                hint="Give another folder with --out.",
            ) from exc
        self._hash = hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def write_plan(self, plan: Plan) -> None:
        """Write the first line."""
        self._write(plan.to_json())

    def write(self, trial: Trial) -> None:
        """Append one trial and hand it to the operating system."""
        self._write(msgspec.json.encode(trial))

    def _write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()
        self._hash.update(line + b"\n")

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all bytes written so far, in hex."""
        return self._hash.hexdigest()


class _Head(msgspec.Struct):
    format_version: int = 1


def load_history(path: Path) -> tuple[Plan, list[Trial]]:
    """Read a history back.

    Raises:
        AuditError: The file cannot be read, is not a history, or is of a later format.
    """
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise AuditError(f"{path} is not a history that can be read: {exc}.") from exc
    return parse_history(data, name=str(path))


def parse_history(data: bytes, *, name: str) -> tuple[Plan, list[Trial]]:
    """Read a history from the bytes of its file.

    Args:
        data: JSON Lines. [untrusted]
        name: What to call it in a message.
    Raises:
        AuditError: It is not a history, or is of a later format.
    """
    try:
        lines: Iterator[bytes] = iter(data.splitlines())
        head = next(lines)
        version = msgspec.json.decode(head, type=_Head).format_version
        if version > FORMAT_VERSION:
            raise AuditError(
                f"{name} is a history of format {version}; this version reads up to "
                f"{FORMAT_VERSION}.",
                hint="Read it with the version that its plan names.",
            )
        plan = msgspec.json.decode(head, type=Plan)
        decoder = msgspec.json.Decoder(Trial)
        return plan, [decoder.decode(line) for line in lines]
    except (StopIteration, RecursionError, msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise AuditError(f"{name} is not a history that can be read: {exc}.") from exc


def _digest(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()[:8]
