"""Read a vLLM command line as vLLM 0.32.0 would, without vLLM. Pure; nothing is run or opened.

What is mirrored: underscores for dashes before the first dot, `--name=value`, unique beginnings of
names, `--no-name`, `--json-option.key value` with `key+` for lists, the last of several wins, and
dotted keys of one option become one JSON value that stands after all others (so they replace a JSON
value that was given whole, they do not merge with it).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kvward.adapters.vllm.doctor.names import ALIASES, OPTIONS, Shape
from kvward.errors import UsageError

JSON_OPTIONS = frozenset(
    {
        "ec-transfer-config",
        "kv-events-config",
        "kv-transfer-config",
        "logging-config",
        "profiler-config",
        "speculative-config",
        "weight-transfer-config",
    }
)
"""Options whose value is a JSON object that rules look into."""

_SECRET_OPTIONS = frozenset({"api-key", "hf-token", "otlp-traces-endpoint"})
"""Options whose value is, or may hold, a key."""

_MAX_CHARACTERS = 65536
_MAX_DEPTH = 16
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_NEGATIVE_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$", re.ASCII)
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*$", re.ASCII)
_SHELL_WORDS = frozenset({";", "&", "&&", "|", "||", "<", ">", ">>", "2>&1"})
_SHORT_LEVEL = re.compile(r"-O(?:=?[0-9A-Za-z]+)$", re.ASCII)


class Program(Enum):
    """What the command line starts."""

    SERVER = "the HTTP server"
    GRPC = "the gRPC server"
    BATCH = "run-batch"
    OTHER = "something else"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclear:
    """A part of the command line that is not understood.

    Attributes:
        setting: Which part; the name of an option, never a value.
        why: One sentence.
    """

    setting: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A vLLM command line, taken apart.

    Attributes:
        environment: Variables that were set in front of the command.
        switches: Options that take no value, on or off, by name without dashes.
        values: Options that take values: those of the last time it was given, of `middleware` all.
        objects: The decoded values of `JSON_OPTIONS`.
        unclear: What was not understood.
    """

    program: Program
    environment: Mapping[str, str]
    switches: Mapping[str, bool]
    values: Mapping[str, tuple[str, ...]]
    objects: Mapping[str, Mapping[str, Any]]
    unclear: tuple[Unclear, ...]

    def is_on(self, name: str) -> bool:
        """Return whether an option without a value was switched on."""
        return self.switches.get(name, False)

    def value(self, name: str) -> str | None:
        """Return the value of an option that takes one, or None. The text None is none."""
        values = self.values.get(name, ())
        return None if not values or values[-1] in {"", "None"} else values[-1]

    def shown(self, name: str) -> str:
        """Return an option as it may be shown to people."""
        values = self.values.get(name, ())
        if not values:
            return f"--{name}"
        return f"--{name} " + ("…" if name in _SECRET_OPTIONS else " ".join(values))


@dataclass(slots=True)
class _Draft:
    switches: dict[str, bool] = field(default_factory=dict)
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unclear: list[Unclear] = field(default_factory=list)
    num_bare: int = 0

    def doubt(self, setting: str, why: str) -> None:
        self.unclear.append(Unclear(setting=setting, why=why))


def parse_unverified_command_line(text: str) -> CommandLine:
    """Take a command line apart. [untrusted]

    It may begin with variables, and with `vllm serve` or `python -m MODULE`; arguments alone are
    those of the server.

    Raises:
        UsageError: it is too long, or its quotes do not close.
    """
    if len(text) > _MAX_CHARACTERS:
        raise UsageError(f"The command line has more than {_MAX_CHARACTERS} characters.")
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as exc:
        raise UsageError(
            "The vLLM command line cannot be split into words: a quote or escape does not close.",
            hint="Give the arguments after --, so that your shell splits them.",
        ) from exc
    draft = _Draft()
    environment, command = _take_environment(words)
    program, arguments = _take_program(command)
    if program is Program.OTHER:
        draft.doubt("command", "It does not start a server of vLLM 0.32.0.")
    elif program is not Program.BATCH:
        _take_options(_join_dotted(_one_spelling(arguments), draft), draft)
    return CommandLine(
        program=program,
        environment=environment,
        switches=draft.switches,
        values=draft.values,
        objects=_decode_objects(draft),
        unclear=tuple(draft.unclear),
    )


def _take_environment(words: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    if words and words[0] in {"env", "export"}:
        words = words[1:]
    environment = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words[0].partition("=")
        environment[name] = value
        words = words[1:]
    return environment, words


def _take_program(words: Sequence[str]) -> tuple[Program, Sequence[str]]:
    match list(words[:3]):
        case [python, "-m", module, *_] if _PYTHON.match(python):
            return _PROGRAM_OF_MODULE.get(module, Program.OTHER), words[3:]
        case [python, *_] if _PYTHON.match(python):
            return Program.OTHER, ()
        case [vllm, "serve", *_] if vllm.rpartition("/")[2] == "vllm":
            return Program.SERVER, words[2:]
        case [vllm, "run-batch", *_] if vllm.rpartition("/")[2] == "vllm":
            return Program.BATCH, words[2:]
        case [vllm, *_] if vllm.rpartition("/")[2] == "vllm":
            return Program.OTHER, ()
        case ["serve", *_]:
            return Program.SERVER, words[1:]
        case _:
            return Program.SERVER, words


_PROGRAM_OF_MODULE = {
    "vllm.entrypoints.openai.api_server": Program.SERVER,
    "vllm.entrypoints.launchers.api_server.entry": Program.SERVER,
    "vllm.entrypoints.grpc_server": Program.GRPC,
    "vllm.entrypoints.launchers.grpc_server": Program.GRPC,
    "vllm.entrypoints.openai.run_batch": Program.BATCH,
    "vllm.entrypoints.launchers.run_batch": Program.BATCH,
}


def _one_spelling(words: Sequence[str]) -> list[str]:
    """Write every option with dashes, and `-O3` as an option with a value."""
    spelled = []
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            head, dot, keys = name.partition(".")
            spelled.append(head.replace("_", "-") + dot + keys + equals + value)
        elif _SHORT_LEVEL.match(word):
            spelled += ["--optimization-level", word[2:].removeprefix("=")]
        elif word == "-O" and after in {"0", "1", "2", "3"}:
            spelled.append("--optimization-level")
        else:
            spelled.append(word)
    return spelled


def _join_dotted(words: Sequence[str], draft: _Draft) -> list[str]:
    """Collect `--option.key value` into one JSON value for each option, at the end."""
    kept: list[str] = []
    dotted: dict[str, dict[str, Any]] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not name.startswith("-") or "." not in name or _NEGATIVE_NUMBER.match(name):
            kept.append(word)
            continue
        option, *keys = name.split(".")
        taken = value if equals else next(rest, None)
        if taken is None or len(keys) > _MAX_DEPTH:
            draft.doubt(name, "It lacks a value, or goes too deep.")
            continue
        _put(dotted.setdefault(option, {}), keys, taken)
    for option, tree in dotted.items():
        kept += [option, json.dumps(tree)]
    return kept


def _put(tree: dict[str, Any], keys: Sequence[str], text: str) -> None:
    """Put one dotted value in its place; lists grow, everything else is replaced."""
    last = keys[-1]
    value: Any
    if last.endswith("+"):
        last, value = last[:-1], text.split(",")
    else:
        value = _decoded(text)
    for key in keys[:-1]:
        if not isinstance(tree.get(key), dict):
            tree[key] = {}
        tree = tree[key]
    if isinstance(value, list) and isinstance(tree.get(last), list):
        tree[last] += value
    elif isinstance(value, dict) and isinstance(tree.get(last), dict):
        tree[last].update(value)
    else:
        tree[last] = value


def _decoded(text: str) -> Any:
    try:
        value = json.loads(text)
        json.dumps(value)
    except (ValueError, RecursionError):
        return text
    return value


def _take_options(words: Sequence[str], draft: _Draft) -> None:
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == "--":
            _take_bare(words[position:], draft)
            return
        if not _is_option(word):
            _take_bare([word], draft)
            continue
        following = []
        for other in words[position:]:
            if other == "--" or _is_option(other):
                break
            following.append(other)
        position += _take_option(word, following, draft)


def _is_option(word: str) -> bool:
    if len(word) < 2 or not word.startswith("-") or _NEGATIVE_NUMBER.match(word):
        return False
    return " " not in word.partition("=")[0]


def _take_bare(words: Sequence[str], draft: _Draft) -> None:
    for word in words:
        draft.num_bare += 1
        if word in _SHELL_WORDS or word.startswith("#"):
            draft.doubt(word[:4], "It is a word of a shell and no argument of vLLM.")
        elif "$" in word or "`" in word:
            # SECURITY: bare words are never shown; one may be a key that lost its option.
            draft.doubt("a bare $ or `", "A shell puts something in its place, options perhaps.")
        elif draft.num_bare > 1:
            draft.doubt("a second bare word", "vLLM takes one model, and nothing else, bare.")


def _take_option(word: str, following: Sequence[str], draft: _Draft) -> int:
    """Note one option; return how many of the words after it belong to it."""
    spelling, equals, attached = word.partition("=")
    if not word.startswith("--") and spelling not in ALIASES and word[:2] in ALIASES:
        spelling, equals, attached = word[:2], "=", word[2:]
    names = _names_of(spelling)
    if len(names) != 1:
        draft.doubt(
            spelling,
            "It is the beginning of several options."
            if names
            else "vLLM 0.32.0 has no such option.",
        )
        # Unknown what it takes: what follows is neither shown nor judged.
        return len(following)
    name, on = names[0]
    shape = OPTIONS[name]
    if shape in {Shape.FLAG, Shape.SWITCH}:
        if equals:
            draft.doubt(spelling, "It takes no value in vLLM 0.32.0.")
        draft.switches[name] = on
        return 0
    if equals:
        used = 0
        values: tuple[str, ...] = (attached,)
    elif following or shape is Shape.OPTIONAL:
        used = len(following) if shape is Shape.LIST else min(1, len(following))
        values = tuple(following[:used])
    else:
        draft.doubt(spelling, "It lacks its value.")
        return 0
    if name == "middleware":
        values = (*draft.values.get(name, ()), *values)
    draft.values[name] = values
    return used


def _names_of(spelling: str) -> list[tuple[str, bool]]:
    """Return the options that a spelling may mean, each with on or off."""
    if spelling in ALIASES:
        return [(ALIASES[spelling], True)]
    if not spelling.startswith("--"):
        return []
    if spelling in _LONG:
        return [_LONG[spelling]]
    return [meaning for name, meaning in _LONG.items() if name.startswith(spelling)]


_LONG: dict[str, tuple[str, bool]] = {
    **{f"--{name}": (name, True) for name in OPTIONS},
    **{f"--no-{name}": (name, False) for name, shape in OPTIONS.items() if shape is Shape.SWITCH},
    **{name: (meant, True) for name, meant in ALIASES.items() if name.startswith("--")},
}


def _decode_objects(draft: _Draft) -> dict[str, Mapping[str, Any]]:
    objects: dict[str, Mapping[str, Any]] = {}
    for name in sorted(JSON_OPTIONS & draft.values.keys()):
        text = draft.values[name][-1]
        if text in {"", "None"}:
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            objects[name] = value
        else:
            draft.doubt(f"--{name}", "Its value is not a JSON object.")
    return objects
