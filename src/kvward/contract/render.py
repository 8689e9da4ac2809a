"""The written guarantee: one page in plain words, what is not promised as prominent as what is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvward.contract.document import contract_digest
from kvward.contract.model import (
    BindingClause,
    Clause,
    Coverage,
    ErasureClause,
    EvidenceClause,
    FailureClause,
    InterferenceClause,
    IsolationContract,
    LifetimeClause,
    MetadataClause,
    OnBadState,
    OnLoss,
    OriginClause,
    ScopeClause,
    ScopeSetter,
    SecrecyClause,
    UntrustedClause,
    Visible,
    coverage,
)
from kvward.terms import CacheTier, ClauseId, SharingLevel

_TIERS = {
    CacheTier.DEVICE: "the engine's own memory",
    CacheTier.HOST: "the host's memory",
    CacheTier.DISK: "the disk tier",
    CacheTier.REMOTE: "the remote store",
    CacheTier.PROVIDER: "the provider's cache",
}
_SUBJECT = {
    ClauseId.SCOPE: "Who may reuse what",
    ClauseId.ORIGIN: "Who decides that",
    ClauseId.BINDING: "What an entry is bound to",
    ClauseId.UNTRUSTED: "State that comes back from a store",
    ClauseId.SECRECY: "What a store's owner can read",
    ClauseId.LIFETIME: "How long state is kept",
    ClauseId.ERASURE: "Erasure",
    ClauseId.METADATA: "What a caller is told of reuse",
    ClauseId.INTERFERENCE: "Other tenants' load",
    ClauseId.FAILURE: "When a part fails",
    ClauseId.EVIDENCE: "How this is tested",
}
_SHARED = {
    SharingLevel.REQUEST: "is reused by no other request",
    SharingLevel.CONVERSATION: "is reused in the same conversation only",
    SharingLevel.USER: "is reused for the same end user of the same tenant only",
    SharingLevel.TENANT: "is reused by any request of the same tenant",
    SharingLevel.PUBLIC: "is reused by everybody, if it is a public prefix",
}
_VISIBLE = {
    Visible.OWN_USAGE: "counts of reused tokens of its own scope",
    Visible.OWN_HEADERS: "headers about reuse of its own scope",
    Visible.ALL_USAGE: "counts of reused tokens, whoever made them",
    Visible.ALL_HEADERS: "headers about reuse, whoever made the state",
    Visible.CACHE_EVENTS: "the engine's events about its cache",
}
_MARKS = re.compile(r"([\\`*_{}\[\]<>#|!&])")
_NEVER = (
    "That the load of others is invisible: shared hardware shows it in times.",
    "Anything against an operator who holds the keys and the engine's memory.",
    "Anything about a place that keeps state and is not named on this page.",
)
_OPENING = (
    "A language model's cache keeps what it worked out from a request, to answer the next one "
    "faster. This page says who can come to reuse what was kept."
)
_EVIDENCE_LIMITS = (
    "A test bounds how often something can happen; it does not prove that it cannot.",
    "Figures that are worked out again from a recorded test follow from the recording.",
    "That the recording was made on this deployment does not follow from it.",
    "A test holds for the build, the day and the places that it names.",
)


def render_markdown(contract: IsolationContract) -> str:
    """Return the guarantee as Markdown.

    Texts of the contract's author (reasons, exceptions) are shown as written: no mark-up, one line.
    """
    kept = _list([_TIERS[tier] for tier in contract.tiers])
    version = f"Version {contract.version}, published {contract.published}"
    lines = [
        f"# What {contract.deployment} guarantees about its cache",
        "",
        _OPENING,
        "",
        f"{version}, holds until {contract.valid_until}. State is kept in {kept}.",
        "",
        "## What is promised",
        "",
    ]
    for clause in ClauseId:
        part = contract.clauses.of(clause)
        if part is not None:
            sentences = " ".join(_promise(part))
            lines.append(f"* **{_SUBJECT[clause]}** ({clause}). {sentences}{_kept(contract, part)}")
    lines += ["", "## What is not promised", ""]
    lines += [f"* {line}" for line in _gaps(contract)]
    lines += ["", "## What the evidence cannot show", ""]
    lines += [f"* {line}" for line in _EVIDENCE_LIMITS]
    lines += ["", f"This text is made from the contract `{contract_digest(contract)}`.", ""]
    return "\n".join(lines)


def _promise(part: Clause) -> Iterator[str]:
    match part:
        case ScopeClause():
            yield from _levels(part)
        case OriginClause():
            known = _list([f"its {one}" for one in part.identity])
            if part.set_by is ScopeSetter.SERVER:
                yield "The server decides it, from who the caller is. A caller cannot choose."
            else:
                yield "The caller chooses it."
            yield f"A caller is known by {known}."
        case BindingClause():
            yield f"It fits only the same {_list([*part.dimensions])}."
        case UntrustedClause():
            verb = {
                OnBadState.RECOMPUTE: "dropped, and worked out anew",
                OnBadState.REFUSE: "dropped, and the request refused",
                OnBadState.SERVE: "used all the same",
            }
            yield f"It is authenticated before it is used. What fails is {verb[part.on_bad_state]}."
        case SecrecyClause():
            yield "It is encrypted." if part.encrypted else "It is not encrypted."
            keyed = "tell" if not part.names_keyed else "do not tell"
            yield f"The names of entries {keyed} what was asked, or by whom."
        case LifetimeClause():
            yield f"Nothing is used that is older than {_time(part.max_age_s)}."
        case ErasureClause():
            whose = _list([f"one {one}" for one in part.of], "or")
            yield f"The state of {whose} can be erased."
            yield f"It is not used later than {_time(part.within_s)} after that."
            yield "A receipt is given." if part.receipt else "No receipt is given."
        case MetadataClause():
            if part.visible:
                yield f"It sees {_list([_VISIBLE[one] for one in part.visible])}, nothing else."
            else:
                yield "Nothing."
        case InterferenceClause():
            if part.protected_share is None:
                yield "No share of the room is set aside."
            else:
                yield f"Of the room, {part.protected_share:.0%} is taken by nobody else's load."
        case FailureClause():
            yield {
                OnLoss.RECOMPUTE: "Answers come more slowly, and nothing is shared more widely.",
                OnLoss.REFUSE: "Requests are refused, and nothing is shared more widely.",
                OnLoss.SHARE: "State may be shared more widely.",
            }[part.on_loss]
        case EvidenceClause():
            yield f"At least every {part.every_days} days. A test counts if it shows that at"
            yield f"most {part.rate_at_most:g} of answers are touched (at {part.confidence:.0%})."
            if part.ledger:
                yield "Every test is entered in a ledger that others can check."


def _levels(part: ScopeClause) -> Iterator[str]:
    for route in part.routes:
        where = "any other route" if route.route == "*" else route.route
        model = "" if route.model == "*" else f" for the model {route.model}"
        yield f"On {where}{model}, what a request brings {_SHARED[route.level]}."
        if route.leading_level is not None and route.leading_level is not route.level:
            shared = _SHARED[route.leading_level]
            yield f"What it opens with, system messages and tool definitions, {shared}."
    if part.public:
        yield f"Public prefixes: {_list([one.name for one in part.public])}."


def _kept(contract: IsolationContract, part: Clause) -> str:
    if isinstance(part, EvidenceClause):
        return ""
    said = {Coverage.ENFORCED: "Enforced in", Coverage.TESTED: "Only tested in"}
    text = ""
    for kept, words in said.items():
        where = [_TIERS[tier] for tier in contract.tiers if coverage(part, tier) is kept]
        if where:
            text += f" {words} {_list(where)}."
    return text


def _gaps(contract: IsolationContract) -> Iterator[str]:
    for clause in ClauseId:
        part = contract.clauses.of(clause)
        if part is None:
            yield f"**{_SUBJECT[clause]}** ({clause}): nothing is promised."
            continue
        if isinstance(part, EvidenceClause):
            continue
        where = [
            _TIERS[tier] for tier in contract.tiers if coverage(part, tier) is Coverage.NOT_COVERED
        ]
        if where:
            yield f"**{_SUBJECT[clause]}** ({clause}): nothing is promised of {_list(where)}."
    metadata = contract.clauses.metadata
    for one in () if metadata is None else metadata.tolerated:
        yield f"Reuse may show by {one.channel}: {_plain(one.reason)}"
    for lapse in contract.exceptions:
        subject = _SUBJECT[lapse.clause].lower()
        yield f"Until {lapse.until}, {subject} does not hold: {_plain(lapse.what)}"
    yield from _NEVER


def _plain(text: str) -> str:
    """Return an author's text so that Markdown shows it as written."""
    return _MARKS.sub(r"\\\1", text)


def _list(items: list[str], last: str = "and") -> str:
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def _time(seconds: int) -> str:
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size and seconds % size == 0:
            return f"{seconds // size:,} {unit}"
    return f"{seconds:,} seconds"
