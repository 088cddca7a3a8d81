"""`edgewise models encoders` as a person runs it: nothing measured yet, measured, of a model without a ladder, removed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgewise.core.errors import EngineUnavailable
from edgewise.models.encoders.record import Judge, ladder_folder, read_ladders, write_winner
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from tests.fakes.tiny_encoders import make_encoder
from tests.models.whisper.small import folder, small_whisper, with_words
from tests.models.whisper.test_rungs import ladder_record

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_every_candidate_is_shown_with_its_time_and_why_it_lost(here: Run, tmp_path: Path) -> None:
    assert "models pull minilm" in here("models", "encoders").stderr
    folder = make_encoder(tmp_path / "encoder")
    assert here("models", "import", str(folder), "--role", "embeddings", "--name", "small").returncode == 0
    assert "not measured yet" in here("models", "encoders", "small").stderr

    done = here("models", "encoders", "small", "--measure", "--json", EDGEWISE_ENGINE__THREADS="1")
    assert done.returncode == 0, done.stderr
    (encoder,) = json.loads(done.stdout)["encoders"]
    (place,) = encoder["places"]
    candidates = {it["name"]: it for it in place["candidates"]}
    assert set(candidates) == {"fp32", "int8-static", "int8-blocks", "int8-mixed"}
    assert [it["chosen"] for it in candidates.values()].count(True) == 1
    for it in candidates.values():
        assert it["chosen"] or it["why"]
        assert (it["ms_one"] is None) == it["why"].startswith("not built")
    assert "in use" in here("models", "encoders").stdout

    ladders = tmp_path / "home" / "models" / "encoders"
    assert list(ladders.iterdir())
    assert here("models", "rm", "small").returncode == 0
    assert not list(ladders.iterdir())


def test_an_encoder_that_hears_says_what_it_waits_for(here: Run, tmp_path: Path) -> None:
    """Nothing here speaks, so nothing judges it: each place that is asked says so, and what to do."""
    folder(small_whisper(), tmp_path / "ear")
    with_words(tmp_path / "ear")
    assert here("models", "import", str(tmp_path / "ear"), "--role", "speech-to-text").returncode == 0
    remedy = "`edgewise models encoders ear --measure --samples FOLDER`"

    assert "`edgewise models show ear` says what it waits for" in here("models", "encoders", "ear").stderr
    shown = json.loads(here("models", "show", "ear", "--json").stdout)
    assert shown["encoder"].startswith("torch computes: no voice is installed")
    assert remedy in shown["encoder_remedy"]
    assert remedy in here("models", "show", "ear").stdout
    measured = here("models", "encoders", "ear", "--measure")
    assert (measured.returncode, "nothing judges it" in measured.stderr, remedy in measured.stderr) == (0, True, True)


def test_what_recordings_judged_is_not_measured_by_a_voice_unless_it_is_named(here: Run, tmp_path: Path) -> None:
    folder(small_whisper(), tmp_path / "ear")
    with_words(tmp_path / "ear")
    assert here("models", "import", str(tmp_path / "ear"), "--role", "speech-to-text").returncode == 0
    store = Store(tmp_path / "home" / "models")
    digest = store.manifest("ear").digest
    judge = Judge(kind="recordings", name="calls", inputs=7)
    kept = replace(ladder_record("torch-float32", None), digest=digest, judge=judge)
    write_winner(ladder_folder(store.root, digest) / "place", kept, None)
    done = here("models", "encoders", "--measure")
    assert "ear was judged by 7 recordings of calls: left as it is" in done.stderr
    assert "judged by 7 recordings of calls" in here("models", "encoders", "ear").stderr
    assert read_ladders(store.root, digest) == [kept]


def test_a_model_without_a_ladder_is_refused_by_name(here: Run, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    assert here("models", "import", str(tmp_path / "model"), "--name", "writes").returncode == 0
    done = here("models", "encoders", "writes")
    assert done.returncode != 0
    assert (
        "'writes' is a model for llm; those for embeddings, rerank, speech-to-text, vision have a ladder" in done.stderr
    )


def test_a_model_is_shown_also_where_the_gpu_cannot_be_asked(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_answer(device: str) -> None:
        raise EngineUnavailable("torch cannot be asked about the GPU")

    folder(small_whisper(), tmp_path / "ear")
    with_words(tmp_path / "ear")
    assert here("models", "import", str(tmp_path / "ear"), "--role", "speech-to-text").returncode == 0
    monkeypatch.setattr("edgewise.engine.machine.look", no_answer)
    done = here("models", "show", "ear", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["installed"]
    assert (shown["encoder"], shown["encoder_remedy"]) == (
        "unknown: torch cannot be asked about the GPU",
        "see `edgewise doctor`",
    )
