"""The examples under deploy/: what their platforms and the command itself would take."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from kvward.cli.audit import command

ROOT = Path(__file__).parents[3]
WORKFLOW = ROOT / "deploy/github/kvward-nightly.yml"
CRONJOB = ROOT / "deploy/kubernetes/cronjob.yaml"
KUBERNETES = "1.31"


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(CRONJOB.read_text()))


def container() -> dict[str, Any]:
    (one,) = documents()[0]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return one


def step(name: str) -> dict[str, Any]:
    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["audit"]["steps"]
    return next(one for one in steps if one.get("name") == name)


def workflow_arguments() -> list[str]:
    (line,) = re.findall(r"^kvward (.*)$", step("Audit")["run"].replace("\\\n", ""), re.MULTILINE)
    return shlex.split(line)


def check_workflow(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "check-jsonschema"),
         "--builtin-schema", "vendor.github-workflows", str(path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_workflow_is_as_its_schema_says_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    done = check_workflow(WORKFLOW)
    assert done.returncode == 0, done.stdout
    damaged = tmp_path / "damaged.yml"
    damaged.write_text(WORKFLOW.read_text().replace("runs-on:", "runs-at:"))
    assert check_workflow(damaged).returncode == 1


def test_manifests_are_as_their_schemas_say_and_a_damaged_one_is_not() -> None:
    kinds = [document["kind"] for document in documents()]
    assert kinds == ["CronJob", "PersistentVolumeClaim", "NetworkPolicy"]
    for document in documents():
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    damaged = documents()[0]
    damaged["spec"]["jobTemplate"]["spec"]["backOffLimit"] = 0
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(damaged, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    "arguments", [workflow_arguments(), container()["args"]], ids=["github", "kubernetes"]
)
def test_command_takes_the_arguments(arguments: list[str]) -> None:
    assert arguments[0] == "audit"
    given = [a.replace("$KVWARD_LEVEL", "conversation") for a in arguments[1:]]
    context = command.make_context("audit", given)
    assert context.params["authorised"] is True
    assert len(context.params["tenants"]) == 2
    # Keys come by the environment, and only from the platform's secrets.
    assert all("=env:" in tenant for tenant in context.params["tenants"])
    assert context.params["sarif_file"]
    assert context.params["junit_file"]
    with pytest.raises(click.UsageError):
        command.make_context("audit", [*given, "--no-such-option"])


def test_keys_come_from_secrets_alone() -> None:
    for name, value in step("Audit")["env"].items():
        assert value == f"${{{{ secrets.{name} }}}}"
    given = {one["name"]: one for one in container()["env"]}
    for tenant in ("A", "B"):
        assert "secretKeyRef" in given[f"KVWARD_KEY_{tenant}"]["valueFrom"]
    # What a workflow's variables hold is never pasted into a script.
    assert "${{" not in step("Audit")["run"]


def test_audit_is_not_repeated_nor_run_beside_another() -> None:
    spec = documents()[0]["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert spec["jobTemplate"]["spec"]["backoffLimit"] == 0
    assert spec["jobTemplate"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert yaml.safe_load(WORKFLOW.read_text())["concurrency"]["cancel-in-progress"] is False


def test_reports_are_published_whatever_the_outcome() -> None:
    for name in ("Publish to code scanning", "Keep the reports"):
        assert "!cancelled()" in step(name)["if"]
    out = step("Publish to code scanning")["with"]["sarif_file"]
    assert f"--sarif {out}" in step("Audit")["run"]


def test_container_may_do_little() -> None:
    security = container()["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"]["drop"] == ["ALL"]
    # Every path that it writes to is a volume.
    mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
    written = re.findall(r"--(?:out|sarif|junit|openmetrics)=(/[a-z]+)", str(container()["args"]))
    assert len(written) == 4
    assert set(written) <= mounts


def test_no_example_names_a_registry() -> None:
    assert re.fullmatch(r"[a-z]+:[A-Z]+", container()["image"])
    for path in (ROOT / "deploy").rglob("*.*"):
        assert not re.search(r"\b[a-z0-9-]+\.(io|com|org|dev)/[a-z-]+/", path.read_text()), path
