"""The lock pins everything that pyproject asks for, inside its ranges, and names no place to get it from."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.lock import TORCH

ROOT = Path(__file__).resolve().parents[2]
LINES = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if line and not line.startswith("#")]
toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ENVIRONMENTS = [
    {
        "python_version": version,
        "python_full_version": f"{version}.5",
        "platform_machine": machine,
        "sys_platform": "linux",
    }
    for version in ("3.10", "3.11", "3.12", "3.13")
    for machine in ("x86_64", "aarch64")
]


def pinned(environment: dict[str, str]) -> dict[str, str]:
    """Name -> version that the lock gives one environment."""
    found: dict[str, str] = {}
    for line in LINES:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name} is pinned twice for {environment}"
            found[name] = str(requirement.specifier).removeprefix("==")
    return found


def wanted() -> list[Requirement]:
    project = toml.loads((ROOT / "pyproject.toml").read_text())
    groups = [item for group in project["dependency-groups"].values() for item in group]
    return [
        Requirement(text)
        for text in (*project["project"]["dependencies"], *groups, *project["build-system"]["requires"])
    ]


def test_every_line_pins_one_version_and_names_no_place() -> None:
    for line in LINES:
        assert re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.]+( ; .+)?", line), line
        assert "/" not in line
        assert "@" not in line


def test_torch_is_named_and_its_cuda_libraries_are_not() -> None:
    assert f"torch=={TORCH}" in LINES
    names = [line for line in LINES if not line.startswith("nvidia-ml-py")]  # which reads the card's sensors
    assert not [line for line in names if line.startswith(("nvidia-", "cuda-", "triton"))]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda e: f"{e['python_version']}-{e['platform_machine']}")
def test_each_requirement_is_pinned_inside_its_range(environment: dict[str, str]) -> None:
    versions = pinned(environment)
    for requirement in wanted():
        if requirement.marker is None or requirement.marker.evaluate(environment):
            version = versions[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version, prereleases=True), f"{requirement} but {version}"
