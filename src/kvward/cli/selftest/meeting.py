"""Start the lab with one defect, audit it in every way that fits, stop it."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kvward.audit.plan import BLOCK_TOKENS, LOAD_CHANNELS, Sizes, Tier
from kvward.audit.target import Command, Control, Controls
from kvward.cli.auditing import AuditRequest, run_audit
from kvward.cli.process import ServerProcess
from kvward.cli.selftest.matrix import Row, Seen, strongest
from kvward.cli.selftest.reading import read_report
from kvward.errors import AuditError
from kvward.lab.defects import Defect
from kvward.terms import CacheTier, Channel, SharingLevel

_KEYS = {"acorn": "selftest-acorn", "birch": "selftest-birch"}
_CLIENTS = 16
_CONTROL_OUTPUTS = 60
_BLOCKS, _HOST_BLOCKS, _SCOPE_QUOTA = "--blocks", "--host-blocks", "--scope-quota"
_COUNTED = re.compile(
    r"^[a-z0-9-]+: (?P<strikes>[\d,]+) of (?P<chances>[\d,]+) opportunities", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard to look.

    Attributes:
        outputs: Outputs read under load.
        pairs: Coin-flipped pairs for each probe scope.
        rate: Rate of those defects that take one.
    """

    outputs: int
    pairs: int
    rate: float
    seed: int


def meet(
    defect: Defect | None,
    *,
    start: tuple[str, ...],
    effort: Effort,
    folder: Path,
    on_audit: Callable[[str], None],
) -> Row:
    """Audit the lab with a defect, or without one.

    Args:
        start: What the lab is started with besides the defect.
        folder: Takes histories and the engine's log.
        on_audit: Called with what is looked at, before each audit.
    """
    began = time.monotonic()
    rate = effort.rate if defect is not None and defect.takes_rate else None
    planted = [] if defect is None else ["--defect", defect.name + (f":{rate:g}" if rate else "")]
    by_key = [] if "--scope-by-key" in start else ["--scope-by-key"]
    arguments = ["lab", "serve", *by_key, *start, *planted, "--defect-seed", str(effort.seed)]
    log = folder / "lab.log"
    seen: list[Seen] = []
    with ServerProcess(arguments, log=log) as server:
        for name, request in _requests(server.url, start, effort):
            on_audit(name)
            seen += _audit(request, folder=folder / name)
    counted = _COUNTED.search(log.read_text(errors="replace"))
    return Row(
        defect=None if defect is None else defect.name,
        failure_class="" if defect is None else defect.failure_class,
        rate=rate,
        start=start,
        expected=frozenset() if defect is None else defect.channels,
        seen=strongest(seen),
        seconds=time.monotonic() - began,
        opportunities=None if counted is None else int(counted["chances"].replace(",", "")),
        strikes=None if counted is None else int(counted["strikes"].replace(",", "")),
    )


def _requests(url: str, start: tuple[str, ...], effort: Effort) -> list[tuple[str, AuditRequest]]:
    """Return the audits of an engine: its memory, and its offload tier if it has one."""
    memory = _request(url, effort, tier=CacheTier.DEVICE, controls={})
    if _SCOPE_QUOTA in start:
        # What an operator who started it so would promise to every tenant.
        quota_blocks = int(start[start.index(_SCOPE_QUOTA) + 1])
        memory = replace(memory, protected_tokens=quota_blocks * BLOCK_TOKENS)
    audits = [("memory", memory)]
    if _HOST_BLOCKS in start:
        # With how many blocks the engine was started: fewer would leave some of them untouched.
        blocks = start[start.index(_BLOCKS) + 1]
        press = (sys.executable, "-m", "kvward", "lab", "press", url, _BLOCKS, blocks)
        controls = {Control.FLUSH_DEVICE: Command(words=press, empties_in_place=True)}
        audits.append(("offload", _request(url, effort, tier=CacheTier.HOST, controls=controls)))
    return audits


def _request(
    url: str, effort: Effort, *, tier: CacheTier, controls: dict[Control, Command]
) -> AuditRequest:
    in_memory = tier is CacheTier.DEVICE
    return AuditRequest(
        url=url,
        keys=_KEYS,
        model=None,
        tier=Tier.SMOKE,
        seed=effort.seed,
        channels=[c for c in Channel if in_memory or c not in LOAD_CHANNELS],
        declared_level=SharingLevel.TENANT,
        clients=_CLIENTS,
        prompt_tokens=None,
        sizes=Sizes(
            content_outputs=effort.outputs, control_outputs=_CONTROL_OUTPUTS, pairs=effort.pairs
        ),
        cache_tier=tier,
        controls=Controls(controls),
    )


def _audit(request: AuditRequest, *, folder: Path) -> tuple[Seen, ...]:
    result = asyncio.run(run_audit(request, folder=folder))
    if result is None:
        raise AuditError("An audit of the self-test did not run.")
    return read_report(*result)
