"""Cached-token counts: what a usage field says about reuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedProbe:
    """One probe's usage.

    Attributes:
        trial: Number of the trial in the history.
        primed: Whether the writer had sent the same prompt before.
        cached_tokens: None when the field is absent.
        prompt_tokens: None when the field is absent.
        common_tokens: What fresh prompts may share with others all the same: a template before
            them, and a few first words by chance. Only more than that is reuse of a prompt.
    """

    trial: int
    primed: bool
    cached_tokens: int | None
    prompt_tokens: int | None
    common_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataReading:
    """What the counts of one probe scope say.

    Attributes:
        num_read: Probes with the field, primed and not.
        num_absent: Probes without it.
        primed_hits, num_primed: Primed probes that reported reuse, of those read.
        phantom_hits: Trials of unprimed probes that reported reuse: of whose state?
        impossible: Trials that reported more cached tokens than the prompt has.
        hit_trials: Trials of `primed_hits`.
    """

    num_read: int
    num_absent: int
    num_primed: int
    hit_trials: tuple[int, ...]
    phantom_hits: tuple[int, ...]
    impossible: tuple[int, ...]

    @property
    def primed_hits(self) -> int:
        """Return the number of primed probes that reported reuse."""
        return len(self.hit_trials)


def read_counts(probes: Sequence[CountedProbe]) -> MetadataReading:
    """Read the usage of all probes of a scope."""
    read = [probe for probe in probes if probe.cached_tokens is not None]
    hits = [probe for probe in read if (probe.cached_tokens or 0) > probe.common_tokens]
    return MetadataReading(
        num_read=len(read),
        num_absent=len(probes) - len(read),
        num_primed=sum(probe.primed for probe in read),
        hit_trials=tuple(probe.trial for probe in hits if probe.primed),
        phantom_hits=tuple(probe.trial for probe in hits if not probe.primed),
        impossible=tuple(
            probe.trial
            for probe in hits
            if probe.prompt_tokens is not None and (probe.cached_tokens or 0) > probe.prompt_tokens
        ),
    )
