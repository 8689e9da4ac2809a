"""Decide: what a finding is worth, in three values, and never more than was looked at.

A violation stands whatever else went wrong. Short of one, everything that keeps a test from
telling makes the cell `INCONCLUSIVE`: no trials, failed trials, a control that did not hold,
caching off, a field that is masked, answers that cannot be read.
"""

from kvward.audit.decide.content import (
    MIN_CONTENT_SENSITIVITY,
    ContentEvidence,
    judge_content,
)
from kvward.audit.decide.differential import DifferentialEvidence, judge_differential
from kvward.audit.decide.interference import judge_interference
from kvward.audit.decide.metadata import judge_metadata
from kvward.audit.decide.timing import judge_timing
from kvward.audit.decide.turns import TurnEvidence, judge_turns

__all__ = [
    "MIN_CONTENT_SENSITIVITY",
    "ContentEvidence",
    "DifferentialEvidence",
    "TurnEvidence",
    "judge_content",
    "judge_differential",
    "judge_interference",
    "judge_metadata",
    "judge_timing",
    "judge_turns",
]
