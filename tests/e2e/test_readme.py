"""The examples of the README, taken from it word for word, work against a real service; only the port is put in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from edgewise.core.settings_schema import Settings
from scripts.service import DeviceService

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
ADDRESS = "http://127.0.0.1:8400"


def example(language: str, marker: str, service: DeviceService) -> str:
    """The one code block of that language that contains the marker, for this service's port."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = [block for block in blocks if marker in block]
    assert ADDRESS in found
    return found.replace(ADDRESS, service.url)


def run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_curl_example(service: DeviceService) -> None:
    output = run("bash", "-c", example("bash", "curl", service))
    assert output.count("data: ") > 3
    assert output.rstrip().endswith("data: [DONE]")


def test_the_openai_python_example(service: DeviceService) -> None:
    assert "Paris" in run(sys.executable, "-c", example("python", "OpenAI", service))


def test_the_examples_use_the_default_port() -> None:
    defaults = {str(Settings().port), str(Settings().fleet.port)}
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", README)) == defaults
