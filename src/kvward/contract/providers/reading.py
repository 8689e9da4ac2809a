"""Read the files about providers, strictly: nothing unknown, nothing left out in silence.

Files lie beside this module, one for each provider, named after it. A field that is not known, a
clause that is neither answered nor marked as unanswered, a source that is not used and a date that
is none all end the reading.
"""

from __future__ import annotations

import tomllib
from datetime import date
from importlib.resources import files

import msgspec

from kvward.contract.providers.questions import QUESTIONS
from kvward.contract.providers.records import (
    CLAUSES,
    Confidence,
    Facts,
    Form,
    Provider,
    SetBy,
    Source,
    Statement,
)
from kvward.errors import ConfigError, UsageError

_SECOND_HAND = "second-hand"
_FACTS = ("set_by", "dimensions", "lifetime", "tiers", "controls", "erasure")
_HINT = "The files in src/kvward/contract/providers show the form."


class _Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    set_by: SetBy | None = None
    dimensions: tuple[str, ...] = ()
    lifetime: str | None = None
    tiers: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    erasure: str | None = None
    not_stated: tuple[str, ...] = ()


class _Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    publisher: str
    page: str
    form: Form
    read: str
    url: str | None = None
    via: str | None = None


class _Clause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    unanswered: bool = False
    says: str | None = None
    sources: tuple[str, ...] = ()
    confidence: Confidence | None = None
    answers: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    covers: str
    facts: _Facts
    sources: dict[str, _Source]
    clauses: dict[str, _Clause]


def load_providers() -> tuple[Provider, ...]:
    """Read all providers, in the order of their names."""
    names = sorted(
        entry.name.removesuffix(".toml")
        for entry in files(__package__).iterdir()
        if entry.name.endswith(".toml")
    )
    return tuple(load_provider(name) for name in names)


def load_provider(name: str) -> Provider:
    """Read one provider.

    Raises:
        UsageError: There is none of this name.
    """
    folder = files(__package__)
    known = {entry.name.removesuffix(".toml") for entry in folder.iterdir()}
    wanted = name.lower()
    entry = folder / f"{wanted}.toml"
    if wanted not in known or not entry.is_file():
        raise UsageError(
            f"Nothing is known about a provider {name!r}.",
            hint="`kvward contract providers` lists the names.",
        )
    return parse_provider(entry.read_text(encoding="utf-8"), name=wanted)


def parse_provider(text: str, *, name: str) -> Provider:
    """Parse the text of a provider's file.

    Args:
        text: TOML. [untrusted]
        name: Name that the record gets, and that errors mention.
    Raises:
        ConfigError: It is not TOML, has a field that is not known, or breaks a rule of this module.
    """
    try:
        return _provider(msgspec.convert(tomllib.loads(text), _File), name)
    except (msgspec.ValidationError, ValueError) as exc:
        raise ConfigError(f"The file of provider {name} is at fault: {exc}.", hint=_HINT) from exc


def _provider(read: _File, name: str) -> Provider:
    if strange := sorted(set(read.clauses) ^ set(CLAUSES)):
        raise ValueError(f"these clauses are missing or not known: {', '.join(strange)}")
    sources = {key: _source(key, source) for key, source in read.sources.items()}
    statements = {clause: _statement(clause, read.clauses[clause], sources) for clause in CLAUSES}
    used = {key for clause in read.clauses.values() for key in clause.sources}
    if idle := sorted(set(sources) - used):
        raise ValueError(f"these sources are not used: {', '.join(idle)}")
    return Provider(
        name=name,
        title=read.title,
        covers=read.covers,
        facts=_facts(read.facts),
        statements=statements,
    )


def _facts(facts: _Facts) -> Facts:
    for field in _FACTS:
        given = bool(getattr(facts, field))
        if given == (field in facts.not_stated):
            raise ValueError(f"facts: give {field}, or list it under not_stated")
    if strange := sorted(set(facts.not_stated) - set(_FACTS)):
        raise ValueError(f"facts: not_stated has {', '.join(strange)}")
    return Facts(
        set_by=facts.set_by or SetBy.NOT_STATED,
        dimensions=facts.dimensions,
        lifetime=facts.lifetime,
        tiers=facts.tiers,
        controls=facts.controls,
        erasure=facts.erasure,
    )


def _source(key: str, source: _Source) -> Source:
    second_hand = source.read == _SECOND_HAND
    if second_hand != (source.form is Form.QUOTATION) or second_hand != (source.via is not None):
        raise ValueError(f"source {key}: a quotation, and nothing else, is second-hand and has via")
    return Source(
        title=source.title,
        publisher=source.publisher,
        page=source.page,
        url=source.url,
        form=source.form,
        read=None if second_hand else date.fromisoformat(source.read),
        via=source.via,
    )


def _statement(clause: str, given: _Clause, sources: dict[str, Source]) -> Statement:
    filled = (given.says, given.sources, given.confidence)
    if given.unanswered and (any(filled) or given.answers):
        raise ValueError(f"clause {clause}: unanswered, and yet something is said")
    if not given.unanswered and not all(filled):
        raise ValueError(f"clause {clause}: says, sources and confidence, or unanswered = true")
    if strange := sorted(set(given.sources) - set(sources)):
        raise ValueError(f"clause {clause}: no source {', '.join(strange)}")
    cited = tuple(sources[key] for key in given.sources)
    all_second_hand = bool(cited) and all(source.read is None for source in cited)
    if all_second_hand != (given.confidence is Confidence.SECOND_HAND):
        raise ValueError(f"clause {clause}: second-hand is what only second-hand sources say")
    if given.answers and given.confidence is not Confidence.STATED:
        raise ValueError(f"clause {clause}: only what is stated answers a question")
    known = {question.id for question in QUESTIONS if question.clause == clause}
    if strange := sorted(set(given.answers) - known):
        raise ValueError(f"clause {clause}: no question {', '.join(strange)}")
    return Statement(
        clause=clause,
        says=given.says,
        sources=cited,
        confidence=given.confidence,
        answers=given.answers,
    )
