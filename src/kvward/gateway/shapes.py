"""What the gateway has to know of a protocol's body, for each protocol. Data and no decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvward.gateway.body import Body, Opening
from kvward.gateway.opening import (
    chat_opening,
    messages_opening,
    no_opening,
    responses_opening,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A protocol's body.

    Attributes:
        name: For events and summaries.
        opening: Returns what anchors a conversation, or None.
        conversation_field: Names a conversation like the header does.
        user_in_metadata: Whether `metadata.user_id` names an end user.
        media_fields: Where parts of prompts lie that may name stored media.
        refused: Fields that are refused here, besides those refused everywhere, and why.
        fixed: Fields that the gateway sets, in JSON.
        inner: Fields whose own fields are owned as those of the top level are.
        takes_transfer: Whether the protocol has `kv_transfer_params`.
    """

    name: str
    opening: Callable[[Body], Opening] = no_opening
    conversation_field: str | None = None
    user_in_metadata: bool = False
    media_fields: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, bytes] = field(default_factory=dict)
    inner: tuple[str, ...] = ()
    takes_transfer: bool = False


CHAT = Shape(name="chat", opening=chat_opening, media_fields=("messages",), takes_transfer=True)
BATCH = Shape(name="batch", media_fields=("messages",))
"""Several conversations in one request: nothing anchors them together."""

PROMPT = Shape(name="prompt", takes_transfer=True)
RESPONSES = Shape(
    name="responses",
    opening=responses_opening,
    conversation_field="conversation",
    media_fields=("input",),
    refused={
        "prompt": "names a prompt that the server holds",
        "previous_input_messages": "puts a prompt before the one that names the conversation",
    },
    # Where the engine keeps answers, it keeps them unless it is told not to.
    fixed={"store": b"false"},
    takes_transfer=True,
)
MESSAGES = Shape(
    name="messages",
    opening=messages_opening,
    user_in_metadata=True,
    takes_transfer=True,
)
"""Its blocks have no name for stored media, and tools' arguments hold whatever they like."""

POOLING = Shape(
    name="pooling",
    media_fields=("messages", "input"),
    refused={"data": "goes to a plug-in, whose prompts need not carry the scope"},
)
SCORE = Shape(
    name="score",
    media_fields=(
        "data_1", "data_2", "queries", "query", "documents", "items", "text_1", "text_2",
    ),
)  # fmt: skip
TOKENS = Shape(
    name="tokens",
    media_fields=("content_parts",),
    refused={"features": "names media by hash, as the engine keeps it for everybody"},
    inner=("sampling_params",),
    takes_transfer=True,
)
DECISIONS = Shape(name="decisions")
TEXT = Shape(name="text", media_fields=("messages",))
