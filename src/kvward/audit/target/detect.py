"""Which preset fits a server: by its name, by what it lists, by what only it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvward.audit.target.pages import Page
from kvward.audit.target.preset import Preset
from kvward.audit.target.presets import PRESETS
from kvward.audit.target.wire import find, to_name

_HOSTS = {"api.openai.com": "openai", "api.anthropic.com": "anthropic"}
_OWNERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llamacpp",
    "kvward": "kvward-lab",
}
_ASKED = (
    ("/api/version", "version", "ollama"),
    ("/info", "router", "tgi"),
    ("/version", "version", "vllm"),
    ("/get_model_info", "model_path", "sglang"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A preset and why it was chosen, in a few words for plan and report."""

    preset: Preset
    reason: str


Get = Callable[[str], Awaitable[Page]]
"""Asks one path of the server with a tenant's key; raises where nothing answers."""


async def find_preset(url: str, get: Get) -> Choice:
    """Ask a server what it is. At most six small requests, none of them a prompt.

    What a server says of itself is believed for the choice of a preset only: a wrong one makes
    trials fail or fields missing, which is inconclusive.
    """
    host = urlsplit(url).hostname or ""
    if host in _HOSTS:
        return Choice(preset=PRESETS[_HOSTS[host]], reason=f"the host is {host}")
    models = await get("/v1/models")
    if models.server.lower().startswith("llama.cpp"):
        return Choice(preset=PRESETS["llamacpp"], reason="the Server header says llama.cpp")
    listed = models.to_object()
    owner = to_name(find(listed, "data.0.owned_by")) or ""
    if owner in _OWNERS:
        return Choice(
            preset=PRESETS[_OWNERS[owner]], reason=f"/v1/models names {owner} as the owner"
        )
    if find(listed, "data.0.type") == "model" and find(listed, "data.0.display_name") is not None:
        return Choice(
            preset=PRESETS["anthropic"], reason="/v1/models lists models as Anthropic does"
        )
    for path, name, preset in _ASKED:
        if to_name((await get(path)).to_object().get(name)) is not None:
            return Choice(preset=PRESETS[preset], reason=f"{path} answers with a {name}")
    return Choice(preset=PRESETS["openai"], reason="nothing else was recognised")
