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
from kvward.audit.target import Command, Control, ControlRequest, Controls
from kvward.cli.auditing import AuditRequest, run_audit
from kvward.cli.process import ServerProcess
from kvward.cli.selftest.matrix import Row, Seen, strongest
from kvward.cli.selftest.reading import read_report
from kvward.errors import AuditError
from kvward.lab.defects import Defect
from kvward.terms import CacheTier, Channel, SharingLevel

_Actions = dict[Control, Command | ControlRequest]
_KEYS = {"acorn": "selftest-acorn", "birch": "selftest-birch"}
_CLIENTS = 16
_CONTROL_OUTPUTS = 60
_BLOCKS, _HOST_BLOCKS, _BY_KEY = "--blocks", "--host-blocks", "--scope-by-key"
_ADAPTER, _UPDATES = "--adapter", "--allow-updates"
_CROWD = 800
_OFFLOAD_SCOPES, _OFFLOAD_WORDS, _MIN_WORDS = 5, 512, 4 * BLOCK_TOKENS
_SCOPE_QUOTA = "--scope-quota"
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
    # Where adapters are served the salt and the adapter make the scope together, so the salt has
    # to be the auditor's own there.
    by_key = [_BY_KEY] if _BY_KEY not in start and _ADAPTER not in start else []
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
    changes = _changes(url, start)
    memory = _request(url, start, effort, tier=CacheTier.DEVICE, controls=changes)
    if _SCOPE_QUOTA in start:
        # What an operator who started it so would promise to every tenant.
        quota_blocks = int(start[start.index(_SCOPE_QUOTA) + 1])
        memory = replace(memory, protected_tokens=quota_blocks * BLOCK_TOKENS)
    audits = [("memory", memory)]
    words = _offload_words(start, effort)
    if words is not None:
        # With how many blocks the engine was started: fewer would leave some of them untouched.
        blocks = start[start.index(_BLOCKS) + 1]
        press = (sys.executable, "-m", "kvward", "lab", "press", url, _BLOCKS, blocks)
        flush: _Actions = {Control.FLUSH_DEVICE: Command(words=press, empties_in_place=True)}
        request = _request(url, start, effort, tier=CacheTier.HOST, controls=changes | flush)
        audits.append(("offload", replace(request, prompt_tokens=words)))
    return audits


def _offload_words(start: tuple[str, ...], effort: Effort) -> int | None:
    """Return how long prompts may be to be found in the offload tier, between priming and probing.

    Each pair leaves three prompts there, at most two of them before the last one is asked for.

    Returns:
        None where there is no such tier, or none that would keep so many prompts.
    """
    if _HOST_BLOCKS not in start:
        return None
    host_blocks = int(start[start.index(_HOST_BLOCKS) + 1])
    words = host_blocks // (2 * effort.pairs * _OFFLOAD_SCOPES) * BLOCK_TOKENS
    return min(words, _OFFLOAD_WORDS) if words >= _MIN_WORDS else None


def _changes(url: str, start: tuple[str, ...]) -> _Actions:
    """Return what the operator of this engine can change in it: erase, load other weights."""
    changes: _Actions = {}
    if _ADAPTER not in start:
        changes[Control.ERASE] = ControlRequest(
            url=f"{url}/v1/cache/erase",
            method="POST",
            headers={"authorization": "Bearer selftest-{tenant}"},
            body={},
        )
    if _UPDATES in start:
        adapter = {"lora_name": "{adapter}"} if _ADAPTER in start else {}
        changes[Control.SWAP_ADAPTER] = ControlRequest(
            url=f"{url}/v1/{'load_lora_adapter' if adapter else 'load_weights'}",
            method="POST",
            headers={},
            body={"seed": "{number}", **adapter},
        )
    return changes


def _request(
    url: str,
    start: tuple[str, ...],
    effort: Effort,
    *,
    tier: CacheTier,
    controls: _Actions,
) -> AuditRequest:
    in_memory = tier is CacheTier.DEVICE
    adapter = start[start.index(_ADAPTER) + 1] if _ADAPTER in start else ""
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
            content_outputs=effort.outputs,
            control_outputs=_CONTROL_OUTPUTS,
            pairs=effort.pairs,
            crowd=_CROWD,
        ),
        cache_tier=tier,
        controls=Controls(controls),
        other_model=adapter.partition("=")[0],
        salted=bool(adapter),
        pictures=in_memory,
    )


def _audit(request: AuditRequest, *, folder: Path) -> tuple[Seen, ...]:
    result = asyncio.run(run_audit(request, folder=folder))
    if result is None:
        raise AuditError("An audit of the self-test did not run.")
    return read_report(*result)
