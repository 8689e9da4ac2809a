"""Which clause an audit's cell puts to the test."""

from __future__ import annotations

from kvward.terms import Channel, ClauseId, ProbeScope, StateEnd, VerdictRecord

_OF_SCOPE = {
    ProbeScope.S1: (ClauseId.BINDING,),
    ProbeScope.S4: (ClauseId.BINDING,),
    ProbeScope.S5: (ClauseId.ORIGIN,),
    ProbeScope.S7: (ClauseId.BINDING,),
    ProbeScope.S8: (ClauseId.INTERFERENCE,),
}
_OF_ENDING = {StateEnd.ERASURE: ClauseId.ERASURE, StateEnd.LIFETIME: ClauseId.LIFETIME}
UNTESTED = {
    ClauseId.UNTRUSTED: "no audit from outside tampers with stored state",
    ClauseId.SECRECY: "no audit from outside reads a store",
    ClauseId.FAILURE: "no audit from outside takes a part away",
}
"""Clauses that no cell tests, and why."""


def clauses_of(record: VerdictRecord) -> tuple[ClauseId, ...]:
    """Return the clauses that a violation of this cell contradicts.

    A count of reuse across scopes contradicts both what is told and what is reused: from outside,
    the server's own word for it is what there is. An answer of one's own that is not what it is
    without a cache shows state that did not fit.
    """
    if record.scope is ProbeScope.S6:
        return tuple(_OF_ENDING[one] for one in StateEnd if one in record.endings)
    if record.scope is ProbeScope.S0:
        own = record.channel in {Channel.CONTENT, Channel.DIFFERENTIAL}
        return (ClauseId.BINDING,) if own else ()
    if record.scope in _OF_SCOPE:
        return _OF_SCOPE[record.scope]
    told = (ClauseId.METADATA,) if record.channel is Channel.METADATA else ()
    return (ClauseId.SCOPE, *told)
