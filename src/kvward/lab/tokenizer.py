"""Text to tokens and back, and chats to prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Self

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from kvward.errors import ModelLoadError, UsageError

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class ChatTokenizer:
    """A tokenizer with a chat template. Thread-safe.

    Args:
        tokenizer: As the `tokenizers` library reads it.
        chat_template: Jinja source from the checkpoint, run in a sandbox; None if it has none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None,
        bos_token: str | None,
        eos_token: str | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._special = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        # A tokenizer without a decoder puts a space between words, so the space is theirs.
        self._joins_with_space = tokenizer.decoder is None
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
        try:
            self._template = (
                None if chat_template is None else environment.from_string(chat_template)
            )
        except jinja2.TemplateError as exc:
            raise ModelLoadError(f"The chat template cannot be read: {exc}.") from exc

    @classmethod
    def from_json(
        cls,
        text: str,
        *,
        chat_template: str | None,
        bos_token: str | None,
        eos_token: str | None,
    ) -> Self:
        """Build one from the content of a tokenizer.json."""
        try:
            tokenizer = Tokenizer.from_str(text)
        except Exception as exc:
            raise ModelLoadError(f"tokenizer.json cannot be read: {exc}.") from exc
        return cls(tokenizer, chat_template=chat_template, bos_token=bos_token, eos_token=eos_token)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; special tokens are recognised, none is added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones left out."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def token_text(self, token_id: int) -> str:
        """Return one token as text, for logprobs."""
        text = str(self._tokenizer.decode([token_id], skip_special_tokens=False))
        return " " + text if self._joins_with_space else text

    def render_chat(self, messages: Sequence[Mapping[str, object]]) -> str:
        """Return the prompt of a chat, ready for the assistant's turn.

        Raises:
            UsageError: The model has no chat template, or the template refuses the messages.
        """
        if self._template is None:
            raise UsageError("This model has no chat template.")
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, **self._special
            )
        except (jinja2.TemplateError, TypeError, KeyError) as exc:
            raise UsageError(f"The chat template refuses these messages: {exc}.") from exc

    def stream(self) -> TextStream:
        """Return a decoder for tokens that come one by one."""
        return TextStream(self)

    @property
    def joins_with_space(self) -> bool:
        """Tell whether the text of every token begins with a space of its own."""
        return self._joins_with_space


class TextStream:
    """Turns tokens into text as they come, holding back characters that are not whole."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending: list[int] = []
        self._context: list[int] = []

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty while a character is cut."""
        self._pending.append(token_id)
        text = self._delta()
        if text.endswith(_REPLACEMENT) and len(self._pending) < 4:  # UTF-8 has at most four bytes
            return ""
        self._settle()
        return text

    def flush(self) -> str:
        """Return what was held back, however it reads."""
        text = self._delta() if self._pending else ""
        self._settle()
        return text

    def _delta(self) -> str:
        if self._tokenizer.joins_with_space:
            return "".join(
                self._tokenizer.token_text(i) for i in self._pending if self._tokenizer.decode([i])
            )
        # Decoded after the token before it, because leading white space depends on it.
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._pending)[len(before) :]

    def _settle(self) -> None:
        if self._pending:
            self._context = self._pending
            self._pending = []
