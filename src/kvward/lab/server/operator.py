"""Routes for whoever runs the server: load weights, erase a salt's state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from kvward.errors import UsageError
from kvward.lab.interface import Engine, SlotView
from kvward.lab.server.answers import AnswerCache
from kvward.lab.server.wire import BadRequestError, parse_body
from kvward.lab.tokenizer import ChatTokenizer

Body = TypeVar("Body", bound=msgspec.Struct)


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """POST /v1/load_lora_adapter. The seed stands for a file of weights."""

    lora_name: str
    seed: int


class LoadWeightsRequest(msgspec.Struct, kw_only=True):
    """POST /v1/load_weights. The seed stands for a file of weights."""

    seed: int


class EraseRequest(msgspec.Struct, kw_only=True):
    """POST /v1/cache/erase."""

    cache_salt: str | None = None


class SlotRequest(msgspec.Struct, kw_only=True):
    """POST /slots; `state` is base64 on the wire."""

    action: Literal["list", "save", "restore"]
    id_slot: int = 0
    cache_salt: str | None = None
    state: bytes = b""


class Operator:
    """Answers the operator's routes.

    Args:
        allow_updates: Whether weights may be loaded; everybody who is let in may, then.
    """

    def __init__(
        self,
        engine: Engine,
        answers: AnswerCache | None,
        *,
        base_name: str,
        tokenizer: ChatTokenizer,
        allow_updates: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._engine = engine
        self._answers = answers
        self._base_name = base_name
        self._allow_updates = allow_updates

    async def load_adapter(self, body: bytes) -> dict[str, Any]:
        """Load an adapter, in place of one of the same name."""
        asked = self._parse_update(body, LoadAdapterRequest)
        if asked.lora_name in ("", self._base_name):
            raise BadRequestError("An adapter has a name of its own.", param="lora_name")
        await asyncio.to_thread(self._engine.load_adapter, asked.lora_name, seed=asked.seed)
        return {"loaded": asked.lora_name}

    async def load_weights(self, body: bytes) -> dict[str, Any]:
        """Load other weights in place of the base's."""
        asked = self._parse_update(body, LoadWeightsRequest)
        await asyncio.to_thread(self._engine.load_base, seed=asked.seed)
        return {"loaded": self._base_name}

    async def erase(
        self, body: bytes, salt_of: Callable[[str | None], str | None]
    ) -> dict[str, Any]:
        """Forget all state of a salt.

        Args:
            salt_of: From what the caller asked for to the salt that their requests run under.
        """
        salt = salt_of(parse_body(body, EraseRequest).cache_salt)
        num_blocks = await asyncio.to_thread(self._engine.erase, salt)
        num_answers = 0 if self._answers is None else self._answers.erase(salt)
        return {"erased_blocks": num_blocks, "erased_answers": num_answers}

    async def slots(
        self, body: bytes, salt_of: Callable[[str | None], str | None]
    ) -> dict[str, Any]:
        """List the slots of a salt, save the state of one, or put a saved state back."""
        asked = parse_body(body, SlotRequest)
        salt = salt_of(asked.cache_salt)
        try:
            if asked.action == "list":
                slots = await asyncio.to_thread(self._engine.slots, salt)
                return {"slots": [self._describe_slot(slot) for slot in slots]}
            if asked.action == "save":
                state = await asyncio.to_thread(self._engine.save_slot, asked.id_slot, salt)
                return {"state": state}
            num_blocks = await asyncio.to_thread(
                self._engine.restore_slot, asked.id_slot, salt, asked.state
            )
        except UsageError as exc:
            raise BadRequestError(exc.message) from exc
        return {"restored_blocks": num_blocks}

    def _describe_slot(self, slot: SlotView) -> dict[str, Any]:
        text = "".join(self._tokenizer.token_text(token) for token in slot.tokens)
        return {"id": slot.slot_id, "num_tokens": len(slot.tokens), "text": text}

    def _parse_update(self, body: bytes, kind: type[Body]) -> Body:
        if not self._allow_updates:
            raise BadRequestError("This server does not load weights while it runs.")
        asked = parse_body(body, kind)
        if getattr(asked, "seed", 0) < 0:
            raise BadRequestError("A seed is not negative.", param="seed")
        return asked
