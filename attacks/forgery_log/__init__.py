"""Forge logs of a ledger in every way that needs no key of theirs."""
