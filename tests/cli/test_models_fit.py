"""`edgewise models fit`: the engine's own sum, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgewise.kernels import limits, paging
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    Store(tmp_path / "home" / "models").import_path(make_tiny_model(tmp_path / "tiny"), "tiny")
    return "tiny"


def test_a_small_model_fits_and_the_sum_is_shown(here: Run, tiny: str) -> None:
    done = here("models", "fit", tiny, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["fits"]
    assert report["page_tokens"] == limits.PAGE_TOKENS
    assert report["kv"] == report["num_pages"] * limits.PAGE_TOKENS * report["kv_per_token"]
    assert "weights" in here("models", "fit", tiny, "--explain").stdout


def test_what_does_not_fit_ends_with_code_1(here: Run, tiny: str) -> None:
    done = here("models", "fit", tiny, EDGEWISE_ENGINE__KV_MEMORY_BYTES="1 KiB")
    assert done.returncode == 1
    assert "does not fit" in done.stdout


def test_the_sum_needs_no_torch() -> None:
    code = "import sys, edgewise.cli.models_fit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
    assert paging.PAGE_TOKENS is limits.PAGE_TOKENS


def test_the_sum_of_several_devices(here: Run, tiny: str) -> None:
    one, two = (json.loads(here("models", "fit", tiny, "--devices", count, "--json").stdout) for count in ("1", "2"))
    assert (one["devices"], two["devices"]) == (1, 2)
    assert one["workspace"] < two["workspace"]
    assert "of all together" in here("models", "fit", tiny, "--devices", "2", "--explain").stdout
    refused = here("models", "fit", tiny, "--devices", "3")
    assert refused.returncode != 0
    assert "1, 2 or 4 can compute" in refused.stderr
