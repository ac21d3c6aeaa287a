"""The README, the changelog, CI and the package agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import lockstep

REPO = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("ending", ["lockstep train cartpole", "-m pytest"])
def test_readme_holds_each_command_once_on_one_line(ending: str) -> None:
    lines = (REPO / "README.md").read_text().splitlines()
    found = [line for line in lines if line.startswith("python3 -m venv") and line.endswith(ending)]
    assert len(found) == 1
    assert "pip install" in found[0]
    assert f"readme_command '{ending}'" in (REPO / ".ci" / "run").read_text()


def test_ci_script_is_executable_and_parses() -> None:
    script = REPO / ".ci" / "run"
    assert os.access(script, os.X_OK)
    checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_version_is_the_same_everywhere() -> None:
    changelog = (REPO / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changelog, flags=re.MULTILINE)
    assert versions[:1] == [lockstep.__version__]
    assert PROJECT["dynamic"] == ["version"]


def test_names_and_extras_are_the_promised_ones() -> None:
    assert PROJECT["name"] == "lockstep-rl"
    assert PROJECT["scripts"] == {"lockstep": "lockstep.cli:main"}
    extras = set(PROJECT["optional-dependencies"])
    assert {"brax", "playground", "torch", "wandb", "test", "dev"} <= extras
    assert (REPO / "lockstep" / "py.typed").is_file()


def test_documentation_links_lead_to_files() -> None:
    pages = [REPO / "README.md", REPO / "CHANGELOG.md", *sorted((REPO / "docs").glob("*.md"))]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []
