"""Lay forgeries before whoever verifies, one after another, and see that none gets through."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from attacks.forgery_log.forgeries import BY_KNOWN, FORGERIES, flip
from attacks.forgery_log.world import ORIGIN, Files, Genuine, World, entry_of
from kvward.errors import ForkError, VerificationError
from kvward.ledger.note import NoteSigner
from kvward.ledger.proof import (
    InclusionProof,
    encode_proof,
    parse_unverified_proof,
    prove_consistency,
    prove_inclusion,
    verify_consistency_proof,
    verify_inclusion_proof,
)
from kvward.ledger.verify import verify_log

_GROUPS = ((3, 4), (200, 56), (250, 6, 44), (256, 256), (100, 300, 130, 10))
_EXAMPLES = 20
PROOFS = ("a proof of inclusion", "a proof of consistency")


@dataclass(kw_only=True)
class Report:
    """What became of all forgeries.

    Attributes:
        applied: By kind.
        refused: By the code of the error.
        only_by_known: Of the three kinds that the log's own key signed, how many verified without
            the known checkpoint, as they must.
        controls: How often the genuine log verified in between.
        wrong: What must not happen.
    """

    applied: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    only_by_known: int = 0
    controls: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def blame(self, what: str, where: str) -> None:
        """Record what must not happen."""
        self.wrong[what] += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{what}: {where}")


class Campaign:
    """Genuine logs in a folder, and a forger beside them.

    Args:
        folder: Empty.
        seed: Of everything that is drawn.
    """

    def __init__(self, folder: Path, *, seed: int) -> None:
        self._rng = random.Random(seed)
        signer = NoteSigner(ORIGIN, self._rng.randbytes(32))
        self._forger = NoteSigner(ORIGIN, self._rng.randbytes(32))
        self._logs = [
            Genuine(folder / str(number), signer, groups, start=1000 * number)
            for number, groups in enumerate(_GROUPS)
        ]
        self._others = [
            Genuine(
                folder / f"other-{number}",
                NoteSigner(f"deployment/other-{number}", self._rng.randbytes(32)),
                groups,
                start=10**5 + 1000 * number,
            )
            for number, groups in enumerate(_GROUPS[:-1])
        ]
        self._verifiers = [signer.verifier]

    def run(self, num_mutations: int) -> Report:
        """Try so many forgeries, of all kinds in turn."""
        report, kinds = Report(), [*FORGERIES, *PROOFS]
        while report.applied.total() < num_mutations:
            self._rng.shuffle(kinds)
            for kind in kinds[: num_mutations - report.applied.total()]:
                genuine = self._rng.choice(self._logs)
                report.applied[kind] += 1
                if kind in PROOFS:
                    self._try_proof(genuine, kind, report)
                else:
                    self._try_log(genuine, kind, report)
            self._check(self._rng.choice(self._logs), report)
        return report

    def _try_log(self, genuine: Genuine, kind: str, report: Report) -> None:
        world = World(rng=self._rng, genuine=genuine, others=self._others, forger=self._forger)
        forged = FORGERIES[kind](world)
        changed = {name: data for name, data in forged.items() if genuine.on_disk.get(name) != data}
        if not changed.keys() & genuine.files.keys():
            # Nothing that the log consists of was changed.
            report.applied[kind] -= 1
            return
        try:
            self._write(genuine.folder, changed)
            self._judge(
                report, kind, lambda: verify_log(genuine.folder, self._verifiers, genuine.known)
            )
            if kind in BY_KNOWN:
                verify_log(genuine.folder, self._verifiers, None)
                report.only_by_known += 1
        finally:
            self._write(genuine.folder, {name: genuine.on_disk.get(name) for name in changed})

    def _try_proof(self, genuine: Genuine, kind: str, report: Report) -> None:
        if kind == PROOFS[0]:
            index = self._rng.randrange(genuine.size)
            data = encode_proof(prove_inclusion(genuine.folder, index, verifiers=None))
        else:
            known = genuine.known.size
            data = encode_proof(prove_consistency(genuine.folder, known, verifiers=None))
        forged = self._forge_proof(data)
        if forged == data:
            report.applied[kind] -= 1
            return

        def verify() -> None:
            proof = parse_unverified_proof(forged)
            if isinstance(proof, InclusionProof):
                verify_inclusion_proof(proof, self._verifiers)
            else:
                verify_consistency_proof(proof, self._verifiers, genuine.known)

        self._judge(report, kind, verify)

    def _forge_proof(self, data: bytes) -> bytes:
        rng, value = self._rng, json.loads(data)
        number = "index" if "index" in value else "old_size"
        how = rng.randrange(6)
        hashes = value["proof"]
        if how == 0 and hashes:
            hashes[rng.randrange(len(hashes))] = rng.randbytes(32).hex()
        elif how == 1 and hashes:
            del hashes[rng.randrange(len(hashes))]
        elif how == 2:
            hashes.insert(rng.randint(0, len(hashes)), rng.randbytes(32).hex())
        elif how == 3:
            value[number] += rng.choice([-1, 1, 256])
        elif how == 4 and "entry" in value:
            value["entry"] = entry_of(10**6).decode()
        else:
            value["checkpoint"] = flip(rng, value["checkpoint"].encode()).decode(errors="replace")
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode()

    def _judge(self, report: Report, kind: str, verify: Callable[[], object]) -> None:
        try:
            verify()
        except (VerificationError, ForkError) as exc:
            report.refused[exc.code] += 1
        except Exception as exc:  # noqa: BLE001 - the attack's one guard: becomes a finding
            report.blame("crashed", f"{kind}: {exc!r}")
        else:
            report.blame("verified", kind)

    def _check(self, genuine: Genuine, report: Report) -> None:
        try:
            verify_log(genuine.folder, self._verifiers, genuine.known)
        except Exception as exc:  # noqa: BLE001 - becomes a finding
            report.blame("genuine log refused", repr(exc))
        report.controls += 1

    def _write(self, folder: Path, files: dict[str, bytes | None] | Files) -> None:
        for name, data in files.items():
            path = folder / name
            if data is None:
                path.unlink(missing_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
