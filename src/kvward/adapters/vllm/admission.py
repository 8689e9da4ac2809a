"""Decide where each block of a request belongs, before the engine looks anything up.

Fails closed: whatever is not authentic or not understood puts blocks into a scope that no other
request has, which costs speed and nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvward.adapters.vllm.naming import BlockScope, RequestNames
from kvward.blocks.inputs import PromptInput, check_inputs
from kvward.errors import ScopeMismatchError
from kvward.events import EventSink
from kvward.scope import TokenKey, verify_token
from kvward.scope.owner import OWNER_FIELD, ScopeOwner, verify_owner
from kvward.scope.spans import SPANS_FIELD, Span, digest_tokens, verify_spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request as the engine has it.

    Attributes:
        cache_salt: Meant to be a scope token. [untrusted]
        transfer_params: The request's `kv_transfer_params`. [untrusted]
        token_ids: Of the prompt.
        inputs: What the prompt holds besides; [untrusted] as to kind and place.
        manifest_digest: Of the model with the request's adapter; None when nobody knows exactly
            which adapter the engine has.
        has_embeddings: Whether embeddings stand in place of tokens.
        goes_on_arriving: Whether the prompt's end is not there yet, and may replace what is.
    """

    cache_salt: str | None
    transfer_params: Mapping[str, object]
    token_ids: Sequence[int]
    inputs: Sequence[PromptInput]
    manifest_digest: bytes | None
    has_embeddings: bool
    goes_on_arriving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicPrefix:
    """A registered public prefix: read by everybody, written by the operator's warm-up only.

    Attributes:
        token_ids: Of the whole prefix.
        token: Of its scope.
        owner: Under which it is stored; None without a store.
    """

    token_ids: tuple[int, ...]
    token: str
    owner: ScopeOwner | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What was decided.

    Attributes:
        names: Of the request's blocks.
        reads_only: Scopes whose blocks this request may find and must not make.
        tenant_id: On whose account the store is asked; None where nobody's is known.
    """

    names: RequestNames
    reads_only: tuple[str, ...]
    tenant_id: bytes | None


class Admissions:
    """Admits requests of one engine.

    Args:
        token_key: Verifies tokens, owner tags and spans. [secret]
        block_tokens: Tokens of a block.
        public: Returns the registered prefixes as they are now.
        events: Takes "vllm.salt-refused", "vllm.owner-refused", "vllm.spans-refused" and
            "vllm.uncacheable" with a reason.
        now_unix_s: Clock of expiry.
    """

    def __init__(
        self,
        token_key: TokenKey,
        *,
        block_tokens: int,
        public: Callable[[], Sequence[PublicPrefix]],
        events: EventSink,
        now_unix_s: Callable[[], float],
    ) -> None:
        self._token_key = token_key
        self._block_tokens = block_tokens
        self._public = public
        self._events = events
        self._clock = now_unix_s

    def admit(self, arrival: Arrival) -> Admission:
        """Decide about one request."""
        nobody = BlockScope(scope=_draw_scope(), owner=None, num_blocks=None)
        checked = check_inputs(arrival.inputs, num_tokens=len(arrival.token_ids))
        unfit = _reason_not_to_cache(arrival)
        reason = unfit or checked.reason
        if reason is not None:
            self._events.emit("vllm.uncacheable", reason=reason)
        scopes: list[BlockScope] = []
        reads_only: tuple[str, ...] = ()
        if unfit is None and self._is_token(arrival.cache_salt):
            scopes, reads_only = self._scopes(arrival)
        if arrival.inputs and len(scopes) > 1:
            # A span is known by its tokens, which an image is not part of.
            first = min(given.first_token for given in arrival.inputs)
            *wide, last = scopes
            scopes = [*_cut(wide, max(0, first) // self._block_tokens), last]
        if checked.cacheable_tokens < len(arrival.token_ids):
            # SECURITY: from the first input that is not understood on, nobody finds anything.
            scopes = _cut(scopes, checked.cacheable_tokens // self._block_tokens)
        names = RequestNames(
            manifest_digest=arrival.manifest_digest or secrets.token_bytes(32),
            block_tokens=self._block_tokens,
            scopes=[*scopes, nobody],
            inputs=checked.inputs,
        )
        owner = scopes[-1].owner if scopes else None
        return Admission(
            names=names,
            reads_only=reads_only,
            tenant_id=None if owner is None else owner.tenant_id,
        )

    def _scopes(self, arrival: Arrival) -> tuple[list[BlockScope], tuple[str, ...]]:
        """Return the scopes of a request whose token is authentic, wide to narrow."""
        token = arrival.cache_salt or ""
        # SECURITY: asked for once, so that all that follows is about the same prefixes.
        public = self._public()
        for prefix in public:
            if prefix.token == token:
                return self._warm_up(prefix, arrival.token_ids), ()
        owner = self._owner(arrival)
        wide = [
            *self._found_public(public, arrival.token_ids),
            *self._spans(arrival, token=token, owner=owner),
        ]
        ordered: list[BlockScope] = []
        end = 0
        for scope in wide:
            if scope.num_blocks is not None and scope.num_blocks > end:
                ordered.append(scope)
                end = scope.num_blocks
        tokens = {prefix.token for prefix in public}
        reads_only = tuple(scope.scope for scope in ordered if scope.scope in tokens)
        return [*ordered, BlockScope(scope=token, owner=owner, num_blocks=None)], reads_only

    def _is_token(self, cache_salt: str | None) -> bool:
        try:
            verify_token(cache_salt or "", token_key=self._token_key)
        except ScopeMismatchError:
            self._events.emit("vllm.salt-refused")
            return False
        return True

    def _owner(self, arrival: Arrival) -> ScopeOwner | None:
        tag = arrival.transfer_params.get(OWNER_FIELD)
        if tag is None:
            return None
        try:
            # What is not text is not a tag, and is refused like one that is wrong.
            text = tag if isinstance(tag, str) else ""
            return verify_owner(text, token=arrival.cache_salt or "", token_key=self._token_key)
        except ScopeMismatchError:
            self._events.emit("vllm.owner-refused")
            return None

    def _spans(self, arrival: Arrival, *, token: str, owner: ScopeOwner | None) -> list[BlockScope]:
        value = arrival.transfer_params.get(SPANS_FIELD)
        if value is None:
            return []
        try:
            spans = verify_spans(
                value, token=token, token_key=self._token_key, now_unix_s=self._clock()
            )
        except ScopeMismatchError:
            self._events.emit("vllm.spans-refused", reason="not-authentic")
            return []
        scopes = []
        for span in spans:
            # SECURITY: the edge says where a span ends; that these tokens are the ones it meant,
            # the engine sees for itself.
            if not _begins_with(arrival.token_ids, span):
                self._events.emit("vllm.spans-refused", reason="other-tokens")
                break
            scopes.append(self._span_scope(span, owner))
        return scopes

    def _span_scope(self, span: Span, owner: ScopeOwner | None) -> BlockScope:
        wider = verify_token(span.token, token_key=self._token_key)
        return BlockScope(
            scope=span.token,
            # Whose the request's own scope is, the wider one is, too: one tag stands for both.
            owner=None
            if owner is None
            else ScopeOwner(tenant_id=owner.tenant_id, scope_id=wider.scope_id, epoch=wider.epoch),
            num_blocks=span.end_tokens // self._block_tokens,
        )

    def _found_public(
        self, public: Sequence[PublicPrefix], token_ids: Sequence[int]
    ) -> list[BlockScope]:
        longest = max(
            (prefix for prefix in public if _starts_with(token_ids, prefix.token_ids)),
            key=lambda prefix: len(prefix.token_ids),
            default=None,
        )
        return [] if longest is None else [self._public_scope(longest)]

    def _warm_up(self, prefix: PublicPrefix, token_ids: Sequence[int]) -> list[BlockScope]:
        """Return the one scope of a warm-up; what goes beyond the prefix is nobody's."""
        if not _starts_with(token_ids, prefix.token_ids):
            return []
        return [self._public_scope(prefix)]

    def _public_scope(self, prefix: PublicPrefix) -> BlockScope:
        return BlockScope(
            scope=prefix.token,
            owner=prefix.owner,
            num_blocks=len(prefix.token_ids) // self._block_tokens,
        )


def _begins_with(token_ids: Sequence[int], span: Span) -> bool:
    leading = token_ids[: span.end_tokens]
    try:
        return len(leading) == span.end_tokens and digest_tokens(leading) == span.digest
    except ValueError:
        return False


def _reason_not_to_cache(arrival: Arrival) -> str | None:
    if arrival.has_embeddings:
        return "embeddings in place of tokens"
    if arrival.goes_on_arriving:
        return "input that goes on arriving"
    if arrival.manifest_digest is None:
        return "an adapter whose content is not known"
    return None


def _cut(scopes: Sequence[BlockScope], num_blocks: int) -> list[BlockScope]:
    """Leave all scopes together so many leading blocks."""
    return [
        replace(
            scope,
            num_blocks=num_blocks
            if scope.num_blocks is None
            else min(scope.num_blocks, num_blocks),
        )
        for scope in scopes
    ]


def _starts_with(token_ids: Sequence[int], prefix: Sequence[int]) -> bool:
    return len(token_ids) >= len(prefix) and list(token_ids[: len(prefix)]) == list(prefix)


def _draw_scope() -> str:
    return f"random-{secrets.token_hex(16)}"
