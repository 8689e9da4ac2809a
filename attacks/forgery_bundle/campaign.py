"""Lay forged bundles before the function that `kvward verify` calls, and count what it says.

What must not happen:

* *verified*: everything holds;
* *undecided*: nothing fails, though something is not shown;
* *crashed*: an error came out that is none of kvward's;
* *control lost*: the genuine bundle, looked at in between, does not verify.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from attacks.forgery_bundle.files import iter_file_forgeries
from attacks.forgery_bundle.forgery import Forged, Forgery
from attacks.forgery_bundle.stories import iter_stories
from attacks.forgery_bundle.world import SIGNER, World
from kvward.cli.recomputing import recompute_audit
from kvward.errors import KvwardError
from kvward.ledger.bundle.archive import parse_unverified_archive
from kvward.ledger.bundle.audit_part import Recomputed
from kvward.ledger.bundle.checking import check_bundle
from kvward.ledger.bundle.result import Standing, Verification
from kvward.ledger.bundle.writing import make_archive

_CONTROL_EVERY = 100
_EXAMPLES = 20
_VARYING = re.compile(r"[0-9a-f]{16,}|\d+(?:\.\d+)?(?:e-?\d+)?|\"[^\"]*\"")


@dataclass(slots=True, kw_only=True)
class Report:
    """What became of all forgeries.

    Attributes:
        wrong: What must not happen, by what it was.
        reasons: Why the first step that failed did, numbers left out.
        controls: How often the genuine bundle verified.
        judged: Histories that were judged again; others had been judged before.
    """

    applied: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    controls: int = 0
    judged: int = 0

    def blame(self, what: str, where: str) -> None:
        """Record what must not happen."""
        self.wrong[what] += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{what}: {where}")

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        total = self.applied.total()
        return {
            "mutations": total,
            "refused": total - self.wrong.total(),
            "wrong": dict(self.wrong),
            "examples": self.examples,
            "genuine_bundles_verified": self.controls,
            "histories_judged_again": self.judged,
            "by_reason": dict(self.reasons.most_common()),
            "by_mutation": dict(sorted(self.applied.items())),
        }

    def render(self) -> str:
        """Render a table, for people."""
        lines = [f"{count:8}  {label}" for label, count in sorted(self.applied.items())]
        lines += ["", *(f"{count:8}  {why}" for why, count in self.reasons.most_common(40)), ""]
        lines += [f"WRONG  {what}: {count}" for what, count in self.wrong.items()]
        lines += [f"       {example}" for example in self.examples]
        lines.append(
            f"{self.applied.total()} forgeries, {self.wrong.total()} of them not refused; "
            f"the genuine bundle verified {self.controls} times; {self.judged} histories judged."
        )
        return "\n".join(lines) + "\n"


def iter_forgeries() -> list[Forgery]:
    """Return every kind of forgery there is."""
    return [*iter_file_forgeries(), *iter_stories()]


class Campaign:
    """A world, and whoever verifies bundles of it with the key of its log.

    Args:
        seed: Of everything that is drawn.
    """

    def __init__(self, world: World, *, seed: int) -> None:
        self._world = world
        self._dice = random.Random(seed)
        self._genuine = {
            (audit.files.history, audit.files.report): recompute_audit(
                audit.files.history, audit.files.report
            )
            for audit in (world.clean, world.leaking)
        }
        self.report = Report()

    def run(
        self, num_mutations: int, *, progress: Callable[[int], None] = lambda _: None
    ) -> Report:
        """Try every kind of forgery in turn; return what became of them."""
        forgeries, report = iter_forgeries(), self.report
        while (done := report.applied.total()) < num_mutations:
            forgery = forgeries[done % len(forgeries)]
            self._try(forgery)
            if done % _CONTROL_EVERY == 0:
                self._control()
            progress(done + 1)
        return report

    def _try(self, forgery: Forgery) -> None:
        report, label = self.report, forgery.label
        report.applied[label] += 1
        forged = forgery.forge(self._dice, self._world)
        if forged.files == self._world.files:
            report.blame("not changed", label)
            return
        try:
            result = self._verify(forged)
        except KvwardError as exc:
            report.reasons[_why(exc.message)] += 1
            return
        # What must not come out is what this is about.
        except Exception as exc:  # noqa: BLE001
            report.blame("crashed", f"{label}: {type(exc).__name__}: {exc}")
            return
        if result.standing is not Standing.FAILS:
            verified = result.standing is Standing.HOLDS
            report.blame("verified" if verified else "undecided", label)
            return
        failed = next(step for step in result.steps if step.standing is Standing.FAILS)
        report.reasons[_why(failed.told)] += 1

    def _control(self) -> None:
        world = self._world
        files = make_archive(world.files) if self._dice.random() < 0.5 else world.files
        result = self._verify(Forged(files=files, known=world.known))
        if result.standing is Standing.HOLDS:
            self.report.controls += 1
        else:
            self.report.blame("control lost", str(result.steps))

    def _verify(self, forged: Forged) -> Verification:
        files = forged.files
        return check_bundle(
            parse_unverified_archive(files) if isinstance(files, bytes) else files,
            trusted=[SIGNER.verifier],
            known=forged.known,
            allow_partial=False,
            recompute=self._recompute,
        )

    def _recompute(self, history: bytes, report: bytes) -> Recomputed:
        """Judge again what is not, byte for byte, an audit of the genuine bundle."""
        found = self._genuine.get((history, report))
        if found is None:
            self.report.judged += 1
            found = recompute_audit(history, report)
        return found


def _why(told: str) -> str:
    return _VARYING.sub("…", told.partition(": ")[0])[:90]
