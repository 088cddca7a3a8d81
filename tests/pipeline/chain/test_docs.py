"""docs/pipelines.md and docs/jobs.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgewise.core.settings_links import OutboxSettings
from edgewise.edge.outbox.routes import JobBody
from edgewise.pipeline.chains import diffuse, generate
from edgewise.pipeline.chains.load import Pipelines, read_pipeline
from edgewise.pipeline.chains.spec import StageSpec
from tests.pipeline.chain.test_spec import KINDS

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "pipelines.md").read_text()
JOBS = (DOCS / "jobs.md").read_text()


def named(page: str) -> set[str]:
    """Every word that the page sets as code."""
    return set(re.findall(r"`([^`\s]+)`", page))


def test_every_key_of_a_stage_and_every_option_is_named() -> None:
    in_example = {"name", "kind", "model", "input", "options"}
    assert set(StageSpec.model_fields) - in_example <= named(PAGE)
    for kind, options in (("generate", generate.Options), ("diffuse", diffuse.Options)):
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{kind}` |"))
        assert named(row) - {kind} == set(options.model_fields) | set(KINDS[kind].fields)


def test_the_example_is_a_pipeline() -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    assert read_pipeline(example[1], "docs", KINDS).output == ("write", "draw")


def test_those_that_ship_are_named_with_their_inputs() -> None:
    found, _ = Pipelines(None, KINDS).all()
    rows = {
        line.split("`")[1]: named(line)
        for line in PAGE.split("## Those that ship")[1].splitlines()
        if line.startswith("| `")
    }
    assert rows.keys() == found.keys()
    for name, pipeline in found.items():
        inputs = {f"{one}*" if spec.default is None else one for one, spec in pipeline.spec.inputs.items()}
        assert inputs <= rows[name]


@pytest.mark.parametrize("field", list(JobBody.model_fields))
def test_every_field_of_a_job_is_named(field: str) -> None:
    assert f"| `{field}` |" in JOBS


@pytest.mark.parametrize("field", list(OutboxSettings.model_fields))
def test_every_setting_of_the_outbox_is_named(field: str) -> None:
    assert f"`outbox.{field}`" in JOBS
