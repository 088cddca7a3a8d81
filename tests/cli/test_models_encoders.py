"""`edgewise models encoders` as a person runs it: nothing measured yet, measured, of a model without a ladder, removed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from edgewise.models.tiny import make_tiny_model
from tests.fakes.tiny_encoders import make_encoder

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_every_candidate_is_shown_with_its_time_and_why_it_lost(run: Run, tmp_path: Path) -> None:
    assert "models pull minilm" in run("models", "encoders").stderr
    folder = make_encoder(tmp_path / "encoder")
    assert run("models", "import", str(folder), "--role", "embeddings", "--name", "small").returncode == 0
    assert "not measured yet" in run("models", "encoders", "small").stderr

    done = run("models", "encoders", "small", "--measure", "--json", EDGEWISE_ENGINE__THREADS="1")
    assert done.returncode == 0, done.stderr
    (encoder,) = json.loads(done.stdout)["encoders"]
    (place,) = encoder["places"]
    candidates = {it["name"]: it for it in place["candidates"]}
    assert set(candidates) == {"fp32", "int8-static", "int8-blocks", "int8-mixed"}
    assert [it["chosen"] for it in candidates.values()].count(True) == 1
    for it in candidates.values():
        assert it["chosen"] or it["why"]
        assert (it["ms_one"] is None) == it["why"].startswith("not built")
    assert "in use" in run("models", "encoders").stdout

    ladders = tmp_path / "home" / "models" / "encoders"
    assert list(ladders.iterdir())
    assert run("models", "rm", "small").returncode == 0
    assert not list(ladders.iterdir())


def test_a_model_without_a_ladder_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    assert run("models", "import", str(tmp_path / "model"), "--name", "writes").returncode == 0
    done = run("models", "encoders", "writes")
    assert done.returncode != 0
    assert (
        "'writes' is a model for llm; those for embeddings, rerank, speech-to-text, vision have a ladder" in done.stderr
    )
