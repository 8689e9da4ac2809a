"""The environment variables of vLLM 0.32.0 that rules look at, read the way vLLM reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvward.adapters.vllm.doctor.names import ENVIRONMENT
from kvward.errors import UsageError
from kvward.keeping import POLICY_VARIABLE

_NUMBERS = frozenset(
    {
        "VLLM_ALLOW_INSECURE_SERIALIZATION",
        "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION",
        "VLLM_ENABLE_COHERE_API",
        "VLLM_ENABLE_RESPONSES_API_STORE",
        "VLLM_SERVER_DEV_MODE",
        "VLLM_USE_RUST_FRONTEND",
        "VLLM_USE_SIMPLE_KV_OFFLOAD",
    }
)
"""On when they hold a whole number other than 0; anything else stops vLLM."""

_ON_WORDS = frozenset({"1", "true"})
_SECRET = frozenset({"VLLM_API_KEY"})


@dataclass(frozen=True, slots=True)
class Environment:
    """Variables by name. What is not in it is taken as not set."""

    variables: Mapping[str, str]

    def is_on(self, name: str) -> bool:
        """Return whether a variable is on; one that is not understood counts as on."""
        value = self.variables.get(name)
        if value is None:
            return False
        if name in _NUMBERS:
            number = _whole_number(value)
            return number is None or number != 0
        return value.strip().lower() in _ON_WORDS

    def text(self, name: str) -> str | None:
        """Return what a variable holds, or None if it is not set or empty."""
        return self.variables.get(name) or None

    def shown(self, name: str) -> str:
        """Return a variable as it may be shown to people."""
        return f"{name}=" + ("…" if name in _SECRET else self.variables.get(name, ""))

    def unclear(self) -> Iterable[tuple[str, str]]:
        """Give every variable that is not understood, and why."""
        for name, value in sorted(self.variables.items()):
            if name.startswith("VLLM_") and name not in ENVIRONMENT:
                yield name, "vLLM 0.32.0 reads no variable of this name."
            elif name in _NUMBERS and _whole_number(value) is None:
                yield name, "It must hold a whole number; vLLM 0.32.0 stops at anything else."


def parse_assignments(pairs: Iterable[str]) -> dict[str, str]:
    """Take `NAME=VALUE` apart; of a name that comes twice the last one stays.

    Raises:
        UsageError: there is no equals sign, or no name.
    """
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError("A variable is written NAME=VALUE.")
        variables[name] = value
    return variables


def of_vllm(process: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of a process that vLLM reads, or what of ours runs inside it."""
    return {
        name: value
        for name, value in process.items()
        if name.startswith("VLLM_") or name in {"PYTHONHASHSEED", POLICY_VARIABLE}
    }


def _whole_number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
