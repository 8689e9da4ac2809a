"""Every route of the engines that the gateway stands before, and what it does with each.

The rows are those of vLLM 0.32 with every task, development mode, run-time adapters and scale-out
switched on, and cover the laboratory engine. What is not here is refused, so that a new route is
not a hole; `kvward.gateway.inventory` says which of a running server's are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kvward.gateway.shapes import (
    BATCH,
    CHAT,
    DECISIONS,
    MESSAGES,
    POOLING,
    PROMPT,
    RESPONSES,
    SCORE,
    TEXT,
    TOKENS,
    Shape,
)
from kvward.terms import SharingLevel

HEALTH_PATH = "/healthz"
"""The gateway's own health; the engine is not asked."""

SUMMARY_PATH = "/kvward/routes"
"""For operators: what is done with each route."""


class Kind(StrEnum):
    """What the gateway does with a route."""

    SCOPED = "scoped"
    """Makes or reads cached state: passes with the scope token, at the level of the policy."""
    HARMLESS = "harmless"
    """Passes for whoever has a key: touches no cached state, tells nothing of others."""
    OPEN = "open"
    """Passes for anybody, for health probes."""
    OPERATOR = "operator"
    """Passes for operators only; to others there is no such route."""
    RELOAD = "reload"
    """An operator's route after which cached state may belong to another model."""
    REFUSED = "refused"
    """Never passes: takes no scope, or reads what was stored for somebody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route: its path here and in the engine.

    Attributes:
        level_name: Its level in the policy; None where no cached state is read or made.
        shape: Of its body; None where nothing in a body is looked at.
    """

    method: str
    path: str
    kind: Kind
    level_name: str | None = None
    shape: Shape | None = None

    def level(self, levels: object) -> SharingLevel | None:
        """Return the level that the policy names for this route, if it does."""
        if self.level_name is None:
            return None
        level: SharingLevel | None = getattr(levels, self.level_name)
        return level


def _scoped(level_name: str, shape: Shape, *paths: str) -> list[Route]:
    return [
        Route(method="POST", path=path, kind=Kind.SCOPED, level_name=level_name, shape=shape)
        for path in paths
    ]


def _of(kind: Kind, method: str, paths: Iterable[str], shape: Shape | None = None) -> list[Route]:
    return [Route(method=method, path=path, kind=kind, shape=shape) for path in paths]


_OPERATOR_GET = [
    "/metrics",
    "/load",
    "/server_info",
    "/kv_event_sources",
    "/tokenizer_info",
    "/is_paused",
    "/is_sleeping",
    "/weight_info",
    "/get_world_size",
    "/fault_tolerance/status",
    "/docs",
    "/docs/oauth2-redirect",
    "/redoc",
    "/openapi.json",
]

_OPERATOR_POST = [
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/pause",
    "/resume",
    "/abort_requests",
    "/inference/v1/abort_requests",
    "/start_profile",
    "/stop_profile",
    "/is_scaling_elastic_ep",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/responses/render",
    "/v1/messages/render",
    "/v1/chat/completions/derender",
    "/v1/completions/derender",
]

# Weights and adapters change; a worker that is slept, replaced or called by name may hold others.
_RELOAD_POST = [
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/init_weight_transfer_engine",
    "/shutdown_weight_transfer_engine",
    "/start_weight_update",
    "/start_draft_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/update_weight_version",
    "/weight_checker",
    "/collective_rpc",
    "/sleep",
    "/wake_up",
    "/release_kv_cache_memory",
    "/scale_elastic_ep",
    "/fault_tolerance/apply",
]

# No field for a scope: Cohere, speech. SageMaker's spelling chooses the protocol by trying them
# all, so nobody can say what a body is. Stored answers are kept without a tenant. An adapter has
# a route of vLLM's own. The static folder is that of the offline documentation.
_REFUSED = [
    *_of(Kind.REFUSED, "POST", ["/cohere/v2/chat", "/cohere/v2/chat/render", "/v2/embed"]),
    *_of(Kind.REFUSED, "POST", ["/v1/audio/transcriptions", "/v1/audio/translations"]),
    *_of(Kind.REFUSED, "POST", ["/invocations", "/ping", "/adapters"]),
    *_of(Kind.REFUSED, "POST", ["/v1/responses/{response_id}/cancel"]),
    *_of(Kind.REFUSED, "GET", ["/v1/responses/{response_id}"]),
    *_of(Kind.REFUSED, "DELETE", ["/adapters/{adapter_name}"]),
    *_of(Kind.REFUSED, "WEBSOCKET", ["/v1/realtime"]),
    *_of(Kind.REFUSED, "MOUNT", ["/static", "/metrics"]),
]

ROUTES: tuple[Route, ...] = (
    *_scoped("chat_completions", CHAT, "/v1/chat/completions"),
    *_scoped("chat_completions", BATCH, "/v1/chat/completions/batch"),
    *_scoped("completions", PROMPT, "/v1/completions"),
    *_scoped("responses", RESPONSES, "/v1/responses"),
    *_scoped("messages", MESSAGES, "/v1/messages", "/v1/messages/count_tokens"),
    *_scoped("embeddings", POOLING, "/v1/embeddings"),
    *_scoped("pooling", POOLING, "/pooling", "/classify"),
    *_scoped("score", SCORE, "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    *_scoped("score", SCORE, "/generative_scoring"),
    *_scoped("generate", TOKENS, "/inference/v1/generate"),
    *_scoped("decisions", DECISIONS, "/v1/systemone"),
    *_of(Kind.OPEN, "GET", ["/health", "/ping"]),
    *_of(Kind.HARMLESS, "GET", ["/v1/models", "/version"]),
    *_of(Kind.HARMLESS, "POST", ["/tokenize", "/detokenize"], TEXT),
    *_of(Kind.OPERATOR, "GET", _OPERATOR_GET),
    *_of(Kind.OPERATOR, "POST", _OPERATOR_POST),
    *_of(Kind.RELOAD, "POST", _RELOAD_POST),
    *_REFUSED,
)
