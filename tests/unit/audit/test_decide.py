"""The rules of decision, one by one, on evidence made by hand."""

import ast
import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest

import kvward.audit
from kvward.audit.decide import ContentEvidence, judge_content, judge_metadata, judge_timing
from kvward.audit.detectors.metadata import MetadataReading
from kvward.audit.detectors.timing import TimingReading
from kvward.audit.stats.bounds import lower_rate, upper_rate
from kvward.audit.verdict import Control, Finding, Stamp, Trials, Verdict
from kvward.terms import CacheTier, Outcome, ProbeScope

STAMP = Stamp(
    confidence=0.95,
    evidence_threshold=9_000.0,
    seed=3,
    plan_digest="p",
    history_digest="h",
    cache_tier=CacheTier.DEVICE,
    tool_version="0",
)
TRIALS = Trials(planned=300, run=300, failed=0, failed_ratio_per_arm=(0.0, 0.0))
FINDING = Finding(trial=4, reader="b/c1", source="a/c1", words=("acorn",), probability=1e-12)
HELD = Control(name="own canary read back", seen=60, tried=60, held=True)
CONTENT = ContentEvidence(
    hint="h",
    trials=TRIALS,
    num_read=300,
    num_unreadable=0,
    findings=(),
    decoy_hits=0,
    control=HELD,
    num_unnamed=0,
    reuse_seen=True,
)
HITS = MetadataReading(
    num_read=80,
    num_absent=0,
    num_primed=40,
    hit_trials=tuple(range(40)),
    phantom_hits=(),
    impossible=(),
)
MISSES = replace(HITS, hit_trials=())
FAST = TimingReading(
    num_pairs=40,
    num_faster=40,
    log_e_path=(0.0, 20.0),
    log_e_slower=0.0,
    median_primed_ns=3_000_000,
    median_unprimed_ns=12_000_000,
    hit_fraction_bound=None,
)
EVEN = replace(
    FAST,
    num_faster=20,
    log_e_path=(0.0, 0.5),
    median_primed_ns=12_000_000,
    hit_fraction_bound=0.1,
)


def content(evidence: ContentEvidence) -> Verdict:
    return judge_content(ProbeScope.S3, evidence, STAMP)


def metadata(
    reading: MetadataReading,
    *,
    control: MetadataReading | None = HITS,
    trials: Trials = TRIALS,
    findings: tuple[Finding, ...] = (),
) -> Verdict:
    scope = ProbeScope.S0 if control is None else ProbeScope.S3
    return judge_metadata(scope, reading, trials, STAMP, control=control, findings=findings)


def timing(
    reading: TimingReading,
    *,
    control: TimingReading | None = FAST,
    trials: Trials = TRIALS,
) -> Verdict:
    scope = ProbeScope.S0 if control is None else ProbeScope.S3
    return judge_timing(scope, reading, trials, STAMP, control=control)


TROUBLE = {
    "none planned": (Trials(planned=0, run=0, failed=0), "No trial"),
    "none run": (Trials(planned=300, run=0, failed=0), "No trial"),
    "all failed": (Trials(planned=300, run=300, failed=300), "No trial"),
    "cut short": (Trials(planned=300, run=299, failed=0), "Only 299 of 300"),
    "too many failed": (Trials(planned=300, run=300, failed=16), "failed"),
    "one arm failed": (
        Trials(planned=300, run=300, failed=6, failed_ratio_per_arm=(0.0, 0.06)),
        "one arm",
    ),
}


@pytest.mark.parametrize("name", TROUBLE)
def test_trouble_with_trials_is_inconclusive_on_every_channel(name: str) -> None:
    trials, words = TROUBLE[name]
    for verdict in (
        content(replace(CONTENT, trials=trials)),
        metadata(MISSES, trials=trials),
        metadata(HITS, control=None, trials=trials),
        timing(EVEN, trials=trials),
        timing(FAST, control=None, trials=trials),
    ):
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert words in verdict.reason


@pytest.mark.parametrize("name", TROUBLE)
def test_violation_stands_whatever_the_trouble(name: str) -> None:
    trials, _ = TROUBLE[name]
    failed = replace(HELD, seen=0, held=False)
    nothing = replace(HITS, hit_trials=())
    for verdict in (
        content(
            replace(
                CONTENT,
                trials=trials,
                findings=(FINDING,),
                control=failed,
                reuse_seen=None,
                num_read=0,
                num_unreadable=300,
            )
        ),
        metadata(HITS, control=nothing, trials=trials, findings=(FINDING,)),
        timing(FAST, control=EVEN, trials=trials),
    ):
        assert verdict.outcome is Outcome.VIOLATED


def test_few_failures_in_every_arm_are_borne() -> None:
    trials = Trials(planned=300, run=300, failed=15, failed_ratio_per_arm=(0.05, 0.05))
    assert content(replace(CONTENT, trials=trials)).outcome is Outcome.NOT_OBSERVED


CONTENT_DOUBTS = {
    "control": (replace(CONTENT, control=replace(HELD, seen=20, held=False)), "20 of 60"),
    "no control": (replace(CONTENT, control=replace(HELD, seen=0, tried=0, held=False)), "0 of 0"),
    "unreadable": (replace(CONTENT, num_read=280, num_unreadable=20), "could not be read"),
    "nothing readable": (replace(CONTENT, num_read=0, num_unreadable=300), "could not be read"),
    "reuse unknown": (replace(CONTENT, reuse_seen=None), "does not tell"),
    "reuse unseen": (replace(CONTENT, reuse_seen=False), "caching may be off"),
}


@pytest.mark.parametrize("name", CONTENT_DOUBTS)
def test_content_that_cannot_be_told_is_inconclusive(name: str) -> None:
    evidence, words = CONTENT_DOUBTS[name]
    verdict = content(evidence)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert words in verdict.reason


def test_content_bound_is_the_visible_bound_over_the_measured_sensitivity() -> None:
    for seen in (60, 57, 40):
        verdict = content(replace(CONTENT, control=replace(HELD, seen=seen)))
        sensitivity = lower_rate(seen, 60, confidence=0.95)
        assert verdict.outcome is Outcome.NOT_OBSERVED
        assert verdict.sensitivity == pytest.approx(sensitivity)
        assert verdict.bound == pytest.approx(upper_rate(0, 300, confidence=0.95) / sensitivity)


def test_unreadable_outputs_do_not_sharpen_the_bound() -> None:
    some = content(replace(CONTENT, num_read=290, num_unreadable=10))
    assert some.outcome is Outcome.NOT_OBSERVED
    assert some.bound is not None
    assert some.bound > (content(CONTENT).bound or 0)


def test_findings_of_one_answer_are_one_event() -> None:
    twice = (FINDING, replace(FINDING, source="a/c2"))
    verdict = content(replace(CONTENT, findings=twice))
    assert verdict.events == 1
    assert verdict.findings == twice
    assert "a/c1" in verdict.reason


def test_decoys_stand_beside_the_real_hits() -> None:
    verdict = content(replace(CONTENT, findings=(FINDING,), decoy_hits=3))
    decoys = next(c for c in verdict.controls if "decoy" in c.name)
    assert (decoys.seen, decoys.held) == (3, False)


METADATA_DOUBTS = {
    "masked": (
        replace(MISSES, num_read=0, num_primed=0, num_absent=80),
        replace(HITS, num_read=0, num_primed=0, num_absent=80, hit_trials=()),
        "does not report",
    ),
    "masked here only": (replace(MISSES, num_read=0, num_primed=0, num_absent=80), HITS, "report"),
    "masked once": (replace(MISSES, num_read=79, num_absent=1), HITS, "did not report"),
    "caching off": (MISSES, MISSES, "caching may be off"),
    "hits too rare": (MISSES, replace(HITS, hit_trials=tuple(range(35))), "35 of 40"),
}


@pytest.mark.parametrize("name", METADATA_DOUBTS)
def test_metadata_that_cannot_be_told_is_inconclusive(name: str) -> None:
    reading, control, words = METADATA_DOUBTS[name]
    verdict = metadata(reading, control=control)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert words in verdict.reason


def test_metadata_without_reuse_is_bounded_by_primed_probes_alone() -> None:
    verdict = metadata(MISSES)
    assert verdict.outcome is Outcome.NOT_OBSERVED
    assert verdict.bound == pytest.approx(
        upper_rate(0, 40, confidence=0.95) / lower_rate(40, 40, confidence=0.95)
    )


def test_metadata_control_that_held_says_so_and_one_that_did_not_is_inconclusive() -> None:
    held = metadata(HITS, control=None)
    assert held.is_control
    assert held.outcome is Outcome.NOT_OBSERVED
    assert held.controls[0].held
    assert metadata(MISSES, control=None).outcome is Outcome.INCONCLUSIVE


def test_timing_needs_the_whole_threshold_and_no_more() -> None:
    just = replace(FAST, log_e_path=(9.1050,))  # ln 9,000 = 9.10498
    below = replace(EVEN, log_e_path=(9.1049,))
    assert timing(just).outcome is Outcome.VIOLATED
    assert timing(below).outcome is Outcome.NOT_OBSERVED
    assert timing(just, control=None).outcome is Outcome.NOT_OBSERVED
    assert timing(below, control=None).outcome is Outcome.INCONCLUSIVE


TIMING_DOUBTS = {
    "control blind": (EVEN, EVEN, "Positive control"),
    "no control": (EVEN, replace(EVEN, num_pairs=0, log_e_path=()), "0 pairs"),
    "no bound": (replace(EVEN, hit_fraction_bound=None), FAST, "exclude no share"),
    "bound too high": (replace(EVEN, hit_fraction_bound=0.3), FAST, "exclude no share"),
}


@pytest.mark.parametrize("name", TIMING_DOUBTS)
def test_timing_that_cannot_be_told_is_inconclusive(name: str) -> None:
    reading, control, words = TIMING_DOUBTS[name]
    verdict = timing(reading, control=control)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert words in verdict.reason


def test_evidence_beyond_every_float_is_still_a_number() -> None:
    verdict = timing(replace(FAST, log_e_path=(5_000.0,)))
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.e_value is not None
    assert 9_000 < verdict.e_value < float("inf")


def test_every_verdict_carries_where_it_comes_from() -> None:
    for verdict in (content(CONTENT), metadata(MISSES), timing(EVEN)):
        assert (verdict.seed, verdict.plan_digest, verdict.history_digest) == (3, "p", "h")
        assert verdict.tool_version == "0"
        assert verdict.confidence == 0.95
        assert verdict.reason.endswith(".")


def test_no_text_of_the_auditor_promises_anything() -> None:
    """Every string that could reach a reader, but docstrings."""
    promise = re.compile(
        r"\b(safe|secured?|no leaks?|pass|passes|passed|leak-free)\b", re.IGNORECASE
    )
    assert promise.search("nothing leaked: it is Safe")
    texts, promises = 0, []
    for path in sorted(Path(inspect.getfile(kvward.audit)).parent.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) in docstrings:
                    continue
                texts += 1
                if promise.search(node.value):
                    promises.append(f"{path.name}:{node.lineno} {node.value!r}")
    assert texts > 200
    assert not promises


def test_server_that_can_be_made_to_report_is_named_with_how() -> None:
    silent = replace(MISSES, num_read=0, num_primed=0, num_absent=80)
    verdict = judge_metadata(
        ProbeScope.S3,
        silent,
        TRIALS,
        replace(STAMP, counter_hint="this one does with --report"),
        control=silent,
        findings=(),
    )
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason == (
        "The target does not report cached tokens; this one does with --report."
    )
