"""What a customer needs to be told about a prompt cache: the bank of questions, by clause.

A question is worded so that one or two sentences answer it and "we do not say" is an answer too.
"""

from __future__ import annotations

from dataclasses import dataclass

_TEXTS = {
    "scope.boundary": (
        "Between which parties is a cached entry never reused: organisations, workspaces, "
        "projects, accounts, keys, end users?"
    ),
    "scope.default": (
        "Does that boundary hold for every request by default, without the caller sending "
        "anything for it?"
    ),
    "scope.finer": (
        "If we serve several tenants or users of our own, how can we have their entries kept "
        "apart, and does that reach everything that is cached?"
    ),
    "scope.tiers": (
        "In which places do entries lie (accelerator memory, host memory, local or remote "
        "storage), and does the boundary hold in each of them?"
    ),
    "scope.products": (
        "Does the same hold for all of your services, for instance dedicated, provisioned and "
        "batch capacity, fine-tuned models, pictures and embeddings?"
    ),
    "origin.setter": (
        "Who sets the scope of an entry: you, from the authenticated account, or a value in the "
        "request?"
    ),
    "origin.forgery": (
        "If a request can carry a value that influences the scope, can one customer reach "
        "another's entries by sending, learning or guessing that customer's value?"
    ),
    "binding.model": (
        "Is the exact version of the model (weights, adapter or fine-tune) part of an entry's "
        "identity, and what becomes of entries when you update a model under the same name?"
    ),
    "binding.inputs": (
        "Which other inputs are part of it, such as tool definitions, pictures, numerical "
        "precision and the version of the serving software?"
    ),
    "untrusted.integrity": (
        "When cached state leaves the memory of the engine that made it, is it authenticated "
        "before an engine reads it again, and what happens to an entry that fails the check?"
    ),
    "secrecy.rest": (
        "Is cached state encrypted wherever it is stored or sent, and are the keys separate for "
        "each customer?"
    ),
    "secrecy.names": (
        "Can the names, hashes or logs of entries reveal a prompt or a customer to whoever "
        "reads them?"
    ),
    "lifetime.bound": (
        "What is the longest time after its creation, and after its last use, for which an "
        "entry can still be reused?"
    ),
    "lifetime.removal": ("How long after that is it gone from every place where it lay?"),
    "erasure.request": (
        "Can we have our entries, or those of one of our users, erased on request, and within "
        "what time?"
    ),
    "erasure.proof": ("What confirms to us that it was done?"),
    "metadata.own": ("Do counters, headers and invoices report the reuse of our own entries only?"),
    "metadata.timing": (
        "What keeps another customer from inferring from response times that we sent a certain "
        "text?"
    ),
    "interference.share": (
        "Can the load of one customer evict or delay another's entries, and is some share "
        "protected from that?"
    ),
    "failure.mode": (
        "When a part of the cache, its routing or the identification of a caller fails, is the "
        "request computed without the cache, or can the boundary become wider?"
    ),
    "evidence.tests": (
        "How is the isolation tested, when was it last tested on the build in service, and may "
        "customers see the result or test it themselves?"
    ),
    "evidence.terms": (
        "Is the promise part of the terms that we agree on, and are we told before it changes?"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question.

    Attributes:
        id: "clause.subject"; statements name the questions that they answer.
        text: As a letter asks it.
    """

    id: str
    text: str

    @property
    def clause(self) -> str:
        """Return the clause that it belongs to."""
        return self.id.partition(".")[0]


QUESTIONS = tuple(Question(id=question_id, text=text) for question_id, text in _TEXTS.items())
"""All questions, in the order of the contract's clauses."""
