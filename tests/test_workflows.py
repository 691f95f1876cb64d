"""The definitions for a hosted CI and for commits: they call what exists, may do little, and keep no secret."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gcodec.benchmark.csv_tables import read_table
from tests.support.paths import ROOT

yaml = pytest.importorskip("yaml")

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKE = re.compile(r"^\s*make\s+([^#\n]*)", re.MULTILINE)
#: What .ci/run calls one after another. `make test` is three of them there.
PARTS = {"check", "compiled", "suites", "docs", "check-gpu"}

if not WORKFLOWS:
    pytest.skip("not a checkout: there are no workflows", allow_module_level=True)


@cache
def parsed(path: Path) -> dict[Any, Any]:
    """Return a file of YAML."""
    content = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(content, dict)
    return content


def steps_of(workflow: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    """Yield each step of each job."""
    for job in workflow["jobs"].values():
        yield from job["steps"]


def targets_of(workflow: dict[Any, Any]) -> set[str]:
    """Return the targets that a workflow gives to make."""
    lines = [line for step in steps_of(workflow) for line in MAKE.findall(step.get("run", ""))]
    return {word for line in lines for word in line.split() if "=" not in word}


def targets_of_makefile() -> set[str]:
    """Return the targets of the Makefile."""
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_targets_that_workflows_make_exist(path):
    assert targets_of(parsed(path))
    assert targets_of(parsed(path)) <= targets_of_makefile()


def test_the_hosted_ci_runs_what_the_script_runs():
    assert targets_of(parsed(ROOT / ".github/workflows/ci.yml")) == PARTS
    script = {line.split()[0] for line in MAKE.findall((ROOT / ".ci/run").read_text("utf-8"))}
    assert {"test", "docs"} <= script
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\ntest:")[2].partition("\n\n")[0]
    made = [line for line in recipe.splitlines() if "$(MAKE)" in line]
    assert {word for line in made for word in line.split()[1:] if word[0] != "-"} == PARTS - {"docs", "check-gpu"}


def test_the_hosted_ci_tests_every_supported_python_from_the_oldest_on():
    pythons = parsed(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert all(isinstance(python, str) for python in pythons)  # 3.10 as a number would be 3.1
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["requires-python"]
    minors = [int(python.partition(".")[2]) for python in pythons]
    assert f">={pythons[0]}" == oldest
    assert minors == list(range(minors[0], minors[0] + len(minors)))


def test_the_classifiers_name_the_pythons_that_are_tested_and_were_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)\n", "\n".join([*project["classifiers"], ""]))
    assert named == parsed(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    tried = [row for row in read_table(ROOT / "bench/results/versions.csv")[1] if row["n_passed"]]
    assert {row["python"].rpartition(".")[0] for row in tried} <= set(named)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_only_read(path):
    workflow = parsed(path)
    assert workflow["permissions"] == {"contents": "read"}
    granted = [job["permissions"] for job in workflow["jobs"].values() if "permissions" in job]
    assert all(permissions == {"id-token": "write"} for permissions in granted)  # to publish, and nothing else
    assert "secrets." not in path.read_text("utf-8")
    assert "pull_request_target" not in path.read_text("utf-8")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_end_and_do_not_pile_up(path):
    workflow = parsed(path)
    assert "${{ github.ref }}" in workflow["concurrency"]["group"]
    assert all(job["timeout-minutes"] <= 60 for job in workflow["jobs"].values())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_have_a_pinned_major_version(path):
    used = [step["uses"] for step in steps_of(parsed(path)) if "uses" in step]
    assert used
    assert all(re.search(r"@(v\d+|release/v\d+)$", action) for action in used), used


def test_hooks_before_a_commit_are_the_tools_of_make_check():
    repositories = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    hooks = [hook["entry"].split() for repository in repositories for hook in repository["hooks"]]
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\ncheck:")[2].partition("\n\n")[0]
    checked = re.findall(r"\$\(BIN\)/(\S+(?: [a-z]+)?)", recipe)
    assert [" ".join(words[:2] if len(words) > 1 else words).removeprefix(".venv/bin/") for words in hooks] == checked


def test_templates_of_issues_say_what_they_are_for():
    for template in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"):
        _, front, text = template.read_text("utf-8").split("---\n", 2)
        assert yaml.safe_load(front).keys() == {"name", "about", "labels"}, template.name
        assert "**" in text
