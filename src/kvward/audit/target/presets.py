"""What is known of each server: its routes, counters, logprobs, and how a scope is forged there.

Every row of `PRESETS` was looked up in December 2026; `facts` name where and of what age, and
`unverified` what could not be seen. `docs/auditing.md` has the same table for people.

Traps that the table settles:

* Absent is not zero. vLLM reports nothing without `--enable-prompt-tokens-details`; SGLang leaves
  the field out when it is zero, so that its detailed counter is asked for as well.
* llama.cpp's `tokens_cached` is the fill of the slot after the answer, generated tokens included,
  whatever its description says. It is not read. `timings.cache_n` is what was reused.
* Anthropic's `input_tokens` leaves out what was read from or written to the cache; Ollama's
  `prompt_eval_count` and everybody else's count include it. Here `prompt` is always all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvward.audit.plan import Route
from kvward.audit.target.answer import Counters
from kvward.audit.target.images import add_image_part, add_media
from kvward.audit.target.preset import Fact, KeyHeader, Preset, RoutePreset
from kvward.audit.target.shapes import (
    Chat,
    Completions,
    Messages,
    OllamaNative,
    Responses,
)
from kvward.audit.target.side import Door, SavedState, SideRequest

CONVERSATION_HEADER = "x-kvward-conversation"
"""Names a conversation to kvward's gateway; every other server ignores it."""


OPENAI_COUNTERS = Counters(
    prompt=(("usage.prompt_tokens",), ("usage.input_tokens",)),
    completion=(("usage.completion_tokens",), ("usage.output_tokens",)),
    cached=(
        ("usage.prompt_tokens_details.cached_tokens",),
        ("usage.input_tokens_details.cached_tokens",),
        ("usage.prompt_cache_hit_tokens",),  # DeepSeek
        ("usage.cached_tokens",),  # Moonshot
    ),
    created=(
        ("usage.prompt_tokens_details.created_cache_tokens",),  # vLLM
        ("usage.prompt_tokens_details.cache_write_tokens",),  # OpenAI
        ("usage.input_tokens_details.cache_write_tokens",),
    ),
)
_ANTHROPIC_PROMPT = (
    "usage.input_tokens",
    "usage.cache_read_input_tokens",
    "usage.cache_creation_input_tokens",
)


def _with_messages(counters: Counters) -> Counters:
    """Return counters that also know Anthropic's names, for servers with both APIs.

    A count under `input_tokens_details` belongs to Responses, whose `input_tokens` is everything.
    """
    return Counters(
        prompt=(("usage.prompt_tokens",), _ANTHROPIC_PROMPT),
        completion=counters.completion,
        cached=(*counters.cached, ("usage.cache_read_input_tokens",)),
        created=(*counters.created, ("usage.cache_creation_input_tokens",)),
    )


_SALTED: Mapping[str, Any] = {"cache_salt": "{salt}", "user": "{session}"}
_LAB = Preset(
    name="kvward-lab",
    title="kvward lab",
    routes={
        Route.COMPLETIONS: RoutePreset(
            path="/v1/completions",
            shape=Completions(),
            max_logprobs=20,
            verbatim=True,
            add_image=add_media,
        ),
        Route.CHAT: RoutePreset(
            path="/v1/chat/completions", shape=Chat(), max_logprobs=20, add_image=add_image_part
        ),
    },
    counters=replace(OPENAI_COUNTERS, matched=(("usage.routing.matched_tokens",),)),
    salt_field="cache_salt",
    headers={CONVERSATION_HEADER: "{conversation}"},
    forged_body={
        route: {**_SALTED, "prompt_cache_key": "{session}"}
        for route in (Route.COMPLETIONS, Route.CHAT)
    },
    tokens_per_word=1.0,
    doors=(
        Door(
            name="slots",
            request=SideRequest(method="POST", path="/slots", body={"action": "list"}),
        ),
    ),
    saved_state=SavedState(
        pin={route: {"id_slot": 0} for route in (Route.COMPLETIONS, Route.CHAT)},
        save=SideRequest(
            method="POST",
            path="/slots",
            body={"action": "save", "id_slot": 0, "cache_salt": "{salt}"},
        ),
        restore=SideRequest(
            method="POST",
            path="/slots",
            body={"action": "restore", "id_slot": 0, "cache_salt": "{salt}", "state": "{state}"},
        ),
        state_path="state",
    ),
    facts=(Fact(source="the lab itself, tested for real", seen="this version"),),
)
_VLLM = Preset(
    name="vllm",
    title="vLLM",
    routes={
        Route.COMPLETIONS: RoutePreset(
            path="/v1/completions", shape=Completions(), max_logprobs=20, verbatim=True
        ),
        Route.CHAT: RoutePreset(path="/v1/chat/completions", shape=Chat(), max_logprobs=20),
        Route.RESPONSES: RoutePreset(path="/v1/responses", shape=Responses(), max_logprobs=20),
        Route.MESSAGES: RoutePreset(path="/v1/messages", shape=Messages()),
    },
    counters=_with_messages(OPENAI_COUNTERS),
    headers={CONVERSATION_HEADER: "{conversation}"},
    forged_body={
        Route.COMPLETIONS: _SALTED,
        Route.CHAT: {**_SALTED, "prompt_cache_key": "{session}"},
        Route.RESPONSES: {**_SALTED, "prompt_cache_key": "{session}"},
        Route.MESSAGES: {"cache_salt": "{salt}", "metadata": {"user_id": "{session}"}},
    },
    facts=(
        Fact(
            source="vllm/entrypoints/serve/engine/protocol.py, openai/*/serving.py, "
            "anthropic/serving.py",
            seen="vLLM 0.32.0, installed package; run on CPU, December 2026",
        ),
    ),
    salt_field="cache_salt",
    counter_hint="vLLM does with --enable-prompt-tokens-details",
    unverified="Run on CPU only, without data parallelism. Completions do not tell what was "
    "written to the cache.",
)
_SGLANG_DETAILS = {"return_cached_tokens_details": True}
_SGLANG_FORGED: Mapping[str, Any] = {**_SALTED, "extra_key": "{salt}"}
_SGLANG = Preset(
    name="sglang",
    title="SGLang",
    routes={
        Route.COMPLETIONS: RoutePreset(
            path="/v1/completions",
            shape=Completions(extra=_SGLANG_DETAILS),
            max_logprobs=20,
            verbatim=True,
        ),
        Route.CHAT: RoutePreset(
            path="/v1/chat/completions", shape=Chat(extra=_SGLANG_DETAILS), max_logprobs=20
        ),
    },
    counters=Counters(
        prompt=(("usage.prompt_tokens",), ("meta_info.prompt_tokens",)),
        completion=(("usage.completion_tokens",), ("meta_info.completion_tokens",)),
        cached=(
            (
                "sglext.cached_tokens_details.device",
                "sglext.cached_tokens_details.host",
                "sglext.cached_tokens_details.storage",
            ),
            ("usage.prompt_tokens_details.cached_tokens",),
            ("meta_info.cached_tokens",),
        ),
    ),
    headers={CONVERSATION_HEADER: "{conversation}"},
    counter_hint="SGLang does with --enable-cache-report",
    salt_field="cache_salt",
    forged_body={Route.COMPLETIONS: _SGLANG_FORGED, Route.CHAT: _SGLANG_FORGED},
    facts=(
        Fact(
            source="sgl-project/sglang python/sglang/srt/entrypoints/openai/protocol.py",
            seen="commit 004c82e07d87",
        ),
        Fact(
            source="the same, usage_processor.py: the field is left out when nothing was reused",
            seen="commit 056c7ec2bdc0",
        ),
    ),
    unverified="No SGLang server was run: there is none for CPU. Whether sglext is streamed before "
    "or after the usage was not seen. Responses and Messages of SGLang are not offered here.",
)
_LLAMACPP_REUSE = {"cache_prompt": True}
_LLAMACPP_FORGED: Mapping[str, Any] = {"id_slot": 0, "cache_salt": "{salt}"}
_LLAMACPP = Preset(
    name="llamacpp",
    title="llama.cpp server",
    routes={
        Route.COMPLETIONS: RoutePreset(
            path="/v1/completions",
            shape=Completions(extra=_LLAMACPP_REUSE),
            max_logprobs=20,
            verbatim=True,
        ),
        Route.CHAT: RoutePreset(
            path="/v1/chat/completions", shape=Chat(extra=_LLAMACPP_REUSE), max_logprobs=20
        ),
        Route.MESSAGES: RoutePreset(path="/v1/messages", shape=Messages()),
    },
    counters=Counters(
        prompt=(
            ("usage.prompt_tokens",),
            ("timings.prompt_n", "timings.cache_n"),
            _ANTHROPIC_PROMPT,
        ),
        completion=(
            ("usage.completion_tokens",),
            ("usage.output_tokens",),
            ("timings.predicted_n",),
        ),
        cached=(
            ("timings.cache_n",),
            ("usage.prompt_tokens_details.cached_tokens",),
            ("usage.cache_read_input_tokens",),
        ),
    ),
    headers={CONVERSATION_HEADER: "{conversation}"},
    keeps_connections=False,  # closed after a stream, although the answer said keep-alive
    forged_body={Route.COMPLETIONS: _LLAMACPP_FORGED, Route.CHAT: _LLAMACPP_FORGED},
    doors=(Door(name="slots", request=SideRequest(path="/slots")),),
    saved_state=SavedState(
        pin={route: {"id_slot": 0} for route in (Route.COMPLETIONS, Route.CHAT)},
        save=SideRequest(
            method="POST", path="/slots/0?action=save", body={"filename": "{name}.bin"}
        ),
        restore=SideRequest(
            method="POST", path="/slots/0?action=restore", body={"filename": "{name}.bin"}
        ),
        state_path=None,
    ),
    facts=(
        Fact(source="ggml-org/llama.cpp tools/server/README.md, timings", seen="October 2026"),
        Fact(source="ggml-org/llama.cpp pull request 19361", seen="merged February 2026"),
        Fact(
            source="an answer with 6 prompt, 20 generated and 25 `tokens_cached` in "
            "danbev/learning-ai notes/llama.cpp/llama-server.md",
            seen="read December 2026",
        ),
        Fact(
            source="ggml-org/llama.cpp tools/server/README.md: GET /slots, POST /slots/{id_slot}; "
            "pull request 15630 (prompts are shown with LLAMA_SERVER_SLOTS_DEBUG only)",
            seen="commit 00dc8057ab28; August 2025",
        ),
    ),
    unverified="The Server header is that of the C++ source; proxies remove it. Slots are saved "
    "only with --slot-save-path; no such server was run.",
)
_OLLAMA = Preset(
    name="ollama",
    title="Ollama",
    routes={
        Route.COMPLETIONS: RoutePreset(
            path="/api/generate", shape=OllamaNative(chat=False), max_logprobs=20, verbatim=True
        ),
        Route.CHAT: RoutePreset(path="/api/chat", shape=OllamaNative(chat=True), max_logprobs=20),
        Route.MESSAGES: RoutePreset(path="/v1/messages", shape=Messages()),
    },
    counters=Counters(
        prompt=(("prompt_eval_count",), _ANTHROPIC_PROMPT),
        completion=(("eval_count",), ("usage.output_tokens",)),
        cached=(("prompt_eval_cached_count",), ("usage.cache_read_input_tokens",)),
        created=(("usage.cache_creation_input_tokens",),),
    ),
    headers={CONVERSATION_HEADER: "{conversation}"},
    facts=(
        Fact(source="ollama/ollama pull request 17943 and issue 8008", seen="merged August 2026"),
        Fact(source="docs.ollama.com/api/usage and openapi.yaml", seen="read December 2026"),
        Fact(source="ollama/ollama-python pull request 601 (logprobs)", seen="November 2025"),
    ),
    unverified="Releases before August 2026 report no reuse at all, and old ones leave "
    "prompt_eval_count out. That the native routes know no field for a scope is what their "
    "description shows, not a test. Up to how many logprobs are given was not found; 20 is asked.",
)
_TGI = Preset(
    name="tgi",
    title="Text Generation Inference",
    routes={
        Route.COMPLETIONS: RoutePreset(path="/v1/completions", shape=Completions(), verbatim=True),
        Route.CHAT: RoutePreset(path="/v1/chat/completions", shape=Chat(), max_logprobs=5),
    },
    counters=OPENAI_COUNTERS,
    headers={CONVERSATION_HEADER: "{conversation}"},
    facts=(
        Fact(
            source="huggingface/text-generation-inference router/src/lib.rs",
            seen="commit 014d3fd4effb",
        ),
        Fact(source="huggingface.co/docs/text-generation-inference messages_api", seen="2026"),
    ),
    unverified="No counter of reused tokens and no field for a scope were found in the sources "
    "that could be read, which are not the newest: expect metadata to be inconclusive. The limit "
    "of 5 logprobs is the documented default of --max-top-n-tokens.",
)
_OPENAI_FORGED: Mapping[str, Any] = {
    "prompt_cache_key": "{session}",
    "safety_identifier": "{session}",
}
_OPENAI = Preset(
    name="openai",
    title="OpenAI, and what copies its API",
    routes={
        Route.COMPLETIONS: RoutePreset(
            path="/v1/completions", shape=Completions(), max_logprobs=5, verbatim=True
        ),
        Route.CHAT: RoutePreset(path="/v1/chat/completions", shape=Chat(), max_logprobs=20),
        Route.RESPONSES: RoutePreset(
            path="/v1/responses", shape=Responses(min_output_tokens=16, temperature=False),
            max_logprobs=20,
        ),
    },
    counters=OPENAI_COUNTERS,
    headers={CONVERSATION_HEADER: "{conversation}"},
    forged_body={
        Route.COMPLETIONS: {"user": "{session}"},
        Route.CHAT: _OPENAI_FORGED,
        Route.RESPONSES: _OPENAI_FORGED,
    },
    min_prompt_tokens=1_024,
    facts=(
        Fact(source="openai 3.57.0 (Python), types of usage and parameters", seen="PyPI, 2026"),
        Fact(source="developers.openai.com/docs/guides/prompt-caching", seen="December 2026"),
        Fact(source="api-docs.deepseek.com/guides/kv_cache", seen="December 2026"),
    ),
    unverified="A miss may be routing: the provider sends a prompt to a machine by a hash of its "
    "beginning. That max_output_tokens is at least 16 is from error messages, not from a document.",
)  # fmt: skip
_ANTHROPIC = Preset(
    name="anthropic",
    title="Anthropic Messages",
    routes={
        Route.MESSAGES: RoutePreset(path="/v1/messages", shape=Messages(temperature=False)),
    },
    counters=Counters(
        prompt=(_ANTHROPIC_PROMPT,),
        completion=(("usage.output_tokens",),),
        cached=(("usage.cache_read_input_tokens",),),
        created=(("usage.cache_creation_input_tokens",),),
    ),
    key_header=KeyHeader.API_KEY,
    headers={"anthropic-version": "2023-06-01"},
    forged_body={Route.MESSAGES: {"metadata": {"user_id": "{session}"}}},
    forged_headers={},
    min_prompt_tokens=4_096,
    write_price_ratio=1.25,
    facts=(
        Fact(
            source="platform.claude.com/docs/en/build-with-claude/prompt-caching, streaming",
            seen="December 2026",
        ),
        Fact(source="docs.litellm.ai/docs/completion/prompt_caching (minimum sizes)", seen="2026"),
    ),
    unverified="The smallest prompt that is cached lies between 512 and 4,096 tokens by model; the "
    "largest is assumed.",
)

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (_LAB, _VLLM, _SGLANG, _LLAMACPP, _OLLAMA, _TGI, _OPENAI, _ANTHROPIC)
}
