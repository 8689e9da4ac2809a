"""The pytest plugin, in a pytest of its own that finds it by its entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvward.testing.two_tenants import Stack, TwoTenants
from servers import guarded_lab

pytestmark = pytest.mark.timeout(240)

SUITE = """
import pytest

@pytest.mark.two_tenants(level="conversation", channels=["metadata"], pairs=40)
def test_tenants_share_nothing(two_tenants):
    report = two_tenants.must_hold()
    assert report.verdicts[-1].bound < 0.2
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    result = pytester.runpytest_subprocess(
        "-p", "no:randomly", "-p", "no:cacheprovider", *arguments
    )
    assert "key-of-" not in result.stdout.str() + result.stderr.str()
    return result


def options(url: str, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    given = [f"--kvward-url={url}"]
    for name, key in keys.items():
        monkeypatch.setenv(f"KEY_{name.upper()}", key)
        given.append(f"--kvward-tenant={name}=env:KEY_{name.upper()}")
    return tuple(given)


def test_stack_that_holds_and_one_that_does_not(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytester.makepyfile(SUITE)
    with guarded_lab(tmp_path / "clean", "--edge-only") as (url, keys):
        run(pytester, *options(url, keys, monkeypatch)).assert_outcomes(passed=1)
    with guarded_lab(tmp_path / "bad", "--edge-only", "--defect", "scope-missing") as (url, keys):
        result = run(pytester, *options(url, keys, monkeypatch), "-l")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines([r".*metadata S3\s+VIOLATED"])
    assert not any(key in result.stdout.str() for key in keys.values())


def test_inconclusive_fails_unless_it_may_be_skipped(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytester.makepyfile(
        SUITE
        + """
@pytest.mark.two_tenants(channels=["metadata"], pairs=20)
def test_may_be_skipped(two_tenants):
    two_tenants.must_hold(inconclusive="skip")

def test_data(two_tenants):
    import asyncio

    async def inside():
        return two_tenants.audit(channels=["metadata"], pairs=20, seed=3)

    report = asyncio.run(inside())
    assert report.outcome == "INCONCLUSIVE"
    assert report.plan.seed == 3
"""
    )
    with guarded_lab(tmp_path / "off", "--edge-only", "--no-prefix-cache") as (url, keys):
        result = run(pytester, *options(url, keys, monkeypatch))
    result.assert_outcomes(failed=1, skipped=1, passed=1)


def test_suite_may_bring_its_own_stack(pytester: pytest.Pytester, tmp_path: Path) -> None:
    with guarded_lab(tmp_path / "clean", "--edge-only") as (url, keys):
        pytester.makeconftest(
            f"""
            import pytest
            from kvward.testing.two_tenants import Stack

            @pytest.fixture(scope="session")
            def kvward_stack():
                return Stack(urls=({url!r},), keys={keys!r})
            """
        )
        pytester.makepyfile(SUITE)
        run(pytester).assert_outcomes(passed=1)


def test_nothing_to_audit_is_skipped_and_wrong_use_is_said(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        SUITE
        + """
@pytest.mark.two_tenants(colour="red")
def test_colour(two_tenants):
    pass
"""
    )
    run(pytester).assert_outcomes(skipped=2)
    own = ("--kvward-tenant=a=key-of-a", "--kvward-tenant=b=key-of-b")
    result = run(pytester, "--kvward-url=http://192.0.2.1", *own)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*--authorised*"])
    result = run(pytester, "--kvward-url=http://127.0.0.1:9", *own, "--strict-markers")
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(["*no setting colour*"])
    assert "audit.target-unreachable" in result.stdout.str()


def test_plugin_costs_a_run_without_it_nothing_heavy(pytester: pytest.Pytester) -> None:
    code = (
        "import sys, kvward.testing.two_tenants; "
        "print(sorted({'numpy', 'scipy', 'matplotlib', 'aiohttp', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    result = run(pytester, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.two_tenants(*"])


def test_stack_and_audit_show_no_keys() -> None:
    stack = Stack(urls=("http://127.0.0.1:1",), keys={"a": "key-of-a", "b": "key-of-b"})
    both = f"{stack!r} {TwoTenants(stack, settings={}, folder=Path())!r}"
    assert "key-of" not in both
    assert "127.0.0.1" in both
