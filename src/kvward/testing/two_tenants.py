"""A pytest plugin: audit the stack under test with two tenants, from a test of its own.

    @pytest.mark.two_tenants(level="conversation", channels=["metadata"])
    def test_tenants_share_nothing(two_tenants):
        two_tenants.must_hold()

The stack is told by `--kvward-url` and `--kvward-tenant`, or by a fixture `kvward_stack` of the
suite's own that starts one. Without either, such tests are skipped. pytest loads this module in
every run, so what an audit needs is imported when one is made.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from kvward.errors import KvwardError
from kvward.terms import Channel, Outcome, SharingLevel

if TYPE_CHECKING:
    from kvward.audit.report import AuditReport

_MARKER = "two_tenants"
_SETTINGS = frozenset({"level", "channels", "tier", "pairs", "outputs", "seed", "model"})
_CONTROL_OUTPUTS = 60
_CLIENTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The stack under test as its tenants see it.

    Attributes:
        urls: One address, or those of its replicas.
        keys: API key of each tenant, at least two. [secret]
    """

    urls: tuple[str, ...]
    keys: Mapping[str, str] = field(repr=False)


class TwoTenants:
    """Audits one stack for one test.

    Args:
        settings: What the marker says.
        folder: Takes histories and reports.
    """

    def __init__(self, stack: Stack, *, settings: Mapping[str, Any], folder: Path) -> None:
        self._stack = stack
        self._settings = dict(settings)
        self._folder = folder
        self._number = 0

    def __repr__(self) -> str:
        """Leave out the keys."""
        return f"<TwoTenants of {' '.join(self._stack.urls)}>"

    def audit(self, **settings: Any) -> AuditReport:
        """Audit the stack and return the report; verdicts are data, nothing is asserted.

        Args:
            settings: Over those of the marker: `level` (what the stack promises), `channels`,
                `tier` ("smoke", "nightly", "release"), `pairs` and `outputs` (instead of the
                tier's sizes), `seed`, `model`.
        Raises:
            KvwardError: The audit could not be carried out.
        """
        self._number += 1
        folder = self._folder / f"audit-{self._number}"
        chosen = self._settings | settings
        # A loop of its own, because the test may be running in one.
        with ThreadPoolExecutor(max_workers=1) as threads:
            return threads.submit(_audit, self._stack, chosen, folder).result()

    def must_hold(
        self, *, inconclusive: Literal["fail", "skip"] = "fail", **settings: Any
    ) -> AuditReport:
        """Audit the stack and fail the test, with the report, unless nothing was observed.

        Args:
            inconclusive: What a test does that could not tell. It does not succeed.
            settings: As for `audit`.
        Returns:
            The report, with the bounds within which nothing was observed.
        """
        __tracebackhide__ = True
        from kvward.audit.report import render_text

        try:
            report = self.audit(**settings)
        except KvwardError as exc:
            pytest.fail(_said(exc), pytrace=False)
        if report.outcome is Outcome.INCONCLUSIVE and inconclusive == "skip":
            pytest.skip(render_text(report))
        if report.outcome is not Outcome.NOT_OBSERVED:
            pytest.fail(render_text(report), pytrace=False)
        return report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that tell where the stack is."""
    group = parser.getgroup("kvward", "isolation of tenants' caches")
    group.addoption(
        "--kvward-url",
        action="append",
        default=[],
        metavar="URL",
        help="The stack to audit; again for its replicas.",
    )
    group.addoption(
        "--kvward-tenant",
        action="append",
        default=[],
        metavar="NAME=env:VARIABLE",
        help="A tenant, and the environment variable that holds its API key; two or more.",
    )
    group.addoption(
        "--kvward-authorised",
        action="store_true",
        help="Say that the stack's owner agrees; needed for any but a loopback address.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    names = ", ".join(sorted(_SETTINGS))
    config.addinivalue_line(
        "markers", f"{_MARKER}(**settings): settings of the audit of `two_tenants`: {names}"
    )


@pytest.fixture(scope="session")
def kvward_stack(request: pytest.FixtureRequest) -> Stack:
    """Tell the stack under test; override it to start one.

    Skips the test when the options name none.
    """
    urls: list[str] = request.config.getoption("--kvward-url")
    tenants: list[str] = request.config.getoption("--kvward-tenant")
    if not urls:
        pytest.skip("no stack to audit: give --kvward-url and --kvward-tenant")
    from kvward.cli.credential import check_address, is_loopback
    from kvward.cli.targeting import check_authorised, parse_tenants

    try:
        for url in urls:
            check_address(url)
            check_authorised(url, authorised=request.config.getoption("--kvward-authorised"))
        keys = parse_tenants(tuple(tenants), literal=all(is_loopback(url) for url in urls))
    except KvwardError as exc:
        pytest.fail(_said(exc), pytrace=False)
    return Stack(urls=tuple(urls), keys=keys)


@pytest.fixture
def two_tenants(request: pytest.FixtureRequest, kvward_stack: Stack, tmp_path: Path) -> TwoTenants:
    """Audit the stack under test, as the marker `two_tenants` says."""
    marker = request.node.get_closest_marker(_MARKER)
    settings = {} if marker is None else dict(marker.kwargs)
    if marker is not None and marker.args:
        pytest.fail(f"The marker {_MARKER} takes named settings only.", pytrace=False)
    _check_settings(settings)
    return TwoTenants(kvward_stack, settings=settings, folder=tmp_path / "kvward")


def _check_settings(settings: Iterable[str]) -> None:
    unknown = sorted(set(settings) - _SETTINGS)
    if unknown:
        known = ", ".join(sorted(_SETTINGS))
        pytest.fail(
            f"An audit has no setting {unknown[0]}. Next: take one of {known}", pytrace=False
        )


def _audit(stack: Stack, settings: Mapping[str, Any], folder: Path) -> AuditReport:
    from kvward.audit.plan import TIER_SIZES, Sizes, Tier
    from kvward.cli.auditing import REPORT_NAME, AuditRequest, run_audit

    _check_settings(settings)
    tier = Tier(settings.get("tier", Tier.SMOKE))
    usual = TIER_SIZES[tier]
    level, channels = settings.get("level"), settings.get("channels")
    request = AuditRequest(
        url=stack.urls[0],
        replicas=stack.urls[1:],
        keys=stack.keys,
        model=settings.get("model"),
        tier=tier,
        seed=settings.get("seed", secrets.randbits(31)),
        channels=None if channels is None else [Channel(channel) for channel in channels],
        declared_level=None if level is None else SharingLevel(level),
        clients=_CLIENTS,
        prompt_tokens=None,
        sizes=Sizes(
            content_outputs=settings.get("outputs", usual.content_outputs),
            control_outputs=min(_CONTROL_OUTPUTS, usual.control_outputs),
            pairs=settings.get("pairs", usual.pairs),
        ),
        title=f"Audit of {' and '.join(stack.urls)}",
    )
    result = asyncio.run(run_audit(request, folder=folder))
    if result is None:
        raise AssertionError("nobody ends it with its plan")
    report, _ = result
    (folder / REPORT_NAME).write_bytes(report.to_json())
    return report


def _said(error: KvwardError) -> str:
    hint = f"\nNext: {error.hint}" if error.hint else ""
    return f"{error.message} [{error.code}]{hint}"
