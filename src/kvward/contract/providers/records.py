"""Records of what a provider states: values only, made by `reading` and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from kvward.terms import ClauseId

CLAUSES = tuple(str(clause) for clause in ClauseId)
"""Ids of the contract's clauses, in its order."""

CLAUSE_TITLES = {
    "scope": "who may reuse an entry",
    "origin": "who sets the scope",
    "binding": "what an entry is bound to",
    "untrusted": "state that left the engine",
    "secrecy": "state at rest and in transit",
    "lifetime": "how long an entry is served",
    "erasure": "erasing entries on request",
    "metadata": "what a caller learns of reuse",
    "interference": "one customer's load and another's entries",
    "failure": "when a part of the cache fails",
    "evidence": "how the promise is tested",
}

NOTICE = (
    "This is our paraphrase of public statements, read on the dates given; it may be out of date "
    "or incomplete. The provider's own text is what counts, and none of it was tested here."
)
"""Goes wherever statements are shown."""


class SetBy(StrEnum):
    """Who decides between whom state is shared."""

    PROVIDER = "provider"
    CALLER = "caller"
    BOTH = "provider and caller"
    NOT_STATED = "not stated"


class Confidence(StrEnum):
    """How sure the paraphrase is. Only what is stated answers a question."""

    STATED = "stated"
    IMPLIED = "implied"
    SECOND_HAND = "second-hand"


class Form(StrEnum):
    """In which form a source was read."""

    PAGE = "page"
    """The publisher's own page, as an archive stored it."""
    COPY = "copy"
    """A copy of the publisher's text that somebody else keeps."""
    QUOTATION = "quotation"
    """Quoted or reported by somebody else; the text around it was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a statement is from.

    Attributes:
        title: Title of the page or text.
        publisher: Who answers for it.
        page: Which page it is, and which edition where that is known.
        url: Only of the provider's own documentation.
        form: In which form it was read.
        read: When we read it. None: second-hand, and `via` says from whom.
        via: Who reports it, for quotations.
    """

    title: str
    publisher: str
    page: str
    url: str | None
    form: Form
    read: date | None
    via: str | None

    @property
    def cited(self) -> str:
        """Return one phrase that lets a reader find the text."""
        when = f"reported by {self.via}" if self.read is None else f"read {self.read.isoformat()}"
        return f"{self.title}, {self.publisher}; {when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a provider states about one clause.

    Attributes:
        clause: Id of the clause.
        says: Our paraphrase. None: nothing found, which is a finding of its own.
        sources: Where it is from; none without a paraphrase.
        confidence: None without a paraphrase.
        answers: Ids of the questions that it answers.
    """

    clause: str
    says: str | None
    sources: tuple[Source, ...]
    confidence: Confidence | None
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The same statements as short values, to compare by. None or empty: not stated.

    Attributes:
        set_by: Who decides between whom state is shared.
        dimensions: What separates two entries: organisation, workspace, project, account.
        lifetime: How long entries are said to live.
        tiers: Where they are said to lie.
        controls: Headers, fields and settings by which a customer changes something.
        erasure: What a customer can do to have entries removed.
    """

    set_by: SetBy
    dimensions: tuple[str, ...]
    lifetime: str | None
    tiers: tuple[str, ...]
    controls: tuple[str, ...]
    erasure: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider and its statements, one for every clause.

    Attributes:
        name: Short name, as commands take it.
        title: Name for people.
        covers: Which of its services the statements are about.
        facts: Short values.
        statements: By clause, in the contract's order.
    """

    name: str
    title: str
    covers: str
    facts: Facts
    statements: Mapping[str, Statement]

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Return the clauses about which nothing was found."""
        return tuple(clause for clause, said in self.statements.items() if said.says is None)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return every source once, in the order of its first use."""
        used = (source for said in self.statements.values() for source in said.sources)
        return tuple(dict.fromkeys(used))

    @property
    def read(self) -> date | None:
        """Return the latest day on which a source was read; None if none was."""
        days = [source.read for source in self.sources if source.read is not None]
        return max(days, default=None)

    @property
    def read_label(self) -> str:
        """Return when it was read, or why there is no such day."""
        if self.read is not None:
            return self.read.isoformat()
        return "second-hand" if self.sources else "nothing found"
