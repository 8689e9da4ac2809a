"""Rules of the house that a tool can check."""

import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvward
from kvward.cli.main import COMMANDS, exit_code_of
from kvward.errors import KvwardError
from kvward.scope import SecretKey
from kvward.terms import ExitCode

ROOT = Path(__file__).parents[2]
FORBIDDEN = ("/work/", "/root/", "/opt/wheels", "files.pythonhosted", "pypi.org/simple")
# These alone may import an engine, so they are looked at where the engine is.
IN_ENGINES = {"kvward.adapters.vllm.connector", "kvward.adapters.vllm.pages"}
MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(kvward.__path__, "kvward.")
    if name not in {"kvward.__main__", *IN_ENGINES}
)


def classes(kind: type) -> list[type]:
    found = {}
    for name in MODULES:
        for _, member in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if member.__module__.startswith("kvward") and issubclass(member, kind):
                found[f"{member.__module__}.{member.__qualname__}"] = member
    return list(found.values())


def test_there_is_one_root_of_errors() -> None:
    errors = classes(BaseException)
    strays = [
        error.__name__
        for error in errors
        if not issubclass(error, KvwardError) and error.__name__ != "_ToldToStop"
    ]
    assert not strays
    assert len(errors) > 20


def test_error_codes_are_unique_and_follow_the_tree() -> None:
    errors = [error for error in classes(KvwardError) if error is not KvwardError]
    codes = {error.code for error in errors}
    assert len(codes) == len(errors)
    for error in errors:
        parent = error.__mro__[1]
        if parent is not KvwardError:
            assert error.code.startswith(parent.code.split(".")[0])


def test_every_error_of_the_tree_maps_to_an_exit_code() -> None:
    tree = [error for error in classes(KvwardError) if error.__module__ == "kvward.errors"]
    codes = {error.__name__: exit_code_of(error("x")) for error in tree}
    assert set(codes.values()) <= set(ExitCode)
    assert codes["TargetUnreachableError"] is ExitCode.UNREACHABLE
    assert codes["TargetRefusedError"] is codes["ConfigError"] is ExitCode.USAGE
    assert codes["OpenError"] is ExitCode.EVIDENCE
    # An audit that could not be carried out, or stopped for isolation, found nothing out.
    assert codes["AuditError"] is codes["ScopeMissingError"] is ExitCode.INCONCLUSIVE
    assert ExitCode.NOT_OBSERVED not in codes.values()
    assert ExitCode.VIOLATED not in codes.values()


def test_every_module_and_public_thing_has_a_docstring() -> None:
    bare = []
    for name in MODULES:
        module = importlib.import_module(name)
        if not module.__doc__:
            bare.append(name)
        for member_name, member in inspect.getmembers(module):
            public = not member_name.startswith("_")
            own = getattr(member, "__module__", None) == name
            if public and own and callable(member) and not inspect.getdoc(member):
                bare.append(f"{name}.{member_name}")
    assert not bare


def test_every_secret_is_marked_as_one() -> None:
    names = {secret.__name__ for secret in classes(SecretKey)}
    assert names == {
        "SecretKey",
        "RootKey",
        "TenantKey",
        "TokenKey",
        "DeploymentKey",
        "SealKey",
        "NameKey",
    }


def test_bare_import_pulls_in_nothing_heavy() -> None:
    code = (
        "import sys, kvward, kvward.cli.main; "
        "heavy = {'numpy', 'scipy', 'matplotlib', 'aiohttp', 'uvicorn', 'torch', 'cryptography'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_detection_and_planting_do_not_name_each_other() -> None:
    source = ROOT / "src" / "kvward"
    planting = "\n".join(p.read_text() for p in (source / "lab").rglob("*.py"))
    # The two places that may speak of the other side: a disclaimer, and a hint to a command.
    planting = planting.replace("It knows nothing of what detects", "")
    planting = planting.replace("`kvward canary-model DIR` writes", "")
    assert not re.search(r"\bkvward\.audit\b|canary|detector|auditor", planting)
    detecting = "\n".join(p.read_text() for p in (source / "audit").rglob("*.py"))
    for name in ("scope-missing", "reuse-in-flight", "early-publish", "kvward.lab"):
        assert name not in detecting


@pytest.mark.parametrize(
    "pattern", ["*.py", "*.md", "*.toml", "*.j2", "Makefile", "*.txt", "*.y*ml", "*.json"]
)
def test_no_machine_path_and_no_registry_host(pattern: str) -> None:
    listed = subprocess.run(
        ["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=False
    )
    for name in listed.stdout.split():
        if name.startswith("tests/architecture"):
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        for forbidden in (
            "/work/",
            "/root/",
            "/opt/wheels",
            "files.pythonhosted",
            "pypi.org/simple",
        ):
            assert forbidden not in text, name


def test_readme_commands_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    code = "\n".join(a + b for a, b in re.findall(r"```(.*?)```|`([^`\n]+)`", readme, re.DOTALL))
    commands = re.findall(r"^kvward ([a-z][a-z-]*)", code, re.MULTILINE)
    assert {"audit", "serve", "gateway", "lab", "canary-model"} <= set(commands)
    assert set(commands) <= set(COMMANDS)
    targets = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", code, re.MULTILINE):
        assert re.search(rf"^{target}:", targets, re.MULTILINE), target


def test_committed_results_hold_what_they_claim() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("soak-audit.json"):
        value = json.loads(path.read_text())
        assert value["repeats"] == len(value["audits"]) > 0
        assert sum(value["outcomes"].values()) == value["repeats"]


def test_only_the_modules_that_may_do_import_an_engine() -> None:
    importing = {
        "kvward." + ".".join(path.relative_to(ROOT / "src" / "kvward").with_suffix("").parts)
        for path in (ROOT / "src" / "kvward").rglob("*.py")
        if re.search(r"^\s*(?:import|from) (?:vllm|torch)\b", path.read_text(), re.MULTILINE)
    }
    # For its annotations only, the connector names torch.
    assert importing == IN_ENGINES
