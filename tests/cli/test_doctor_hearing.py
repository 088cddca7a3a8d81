"""What `edgewise doctor` says of models that hear: what computes their encoders, and what would be quicker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgewise.cli.doctor_checks import check_hearing
from edgewise.core.settings import load_settings
from edgewise.engine.numerics import cpu_family
from edgewise.models.encoders.record import Judge, ladder_folder, place_name, write_winner
from edgewise.models.onnx_session import RUNTIME
from edgewise.models.store import Store
from tests.models.whisper.small import folder, small_whisper, with_words
from tests.models.whisper.test_rungs import ladder_record


def test_a_model_that_hears_is_shown_with_what_judged_it_or_what_would(tmp_path: Path) -> None:
    settings = load_settings(overrides={"home": str(tmp_path), "engine.threads": 1}, environ={}).settings
    assert list(check_hearing(settings, {})) == []
    folder(small_whisper(), tmp_path / "ear")
    store = Store(tmp_path / "models", reserve_bytes=0)
    store.import_path(with_words(tmp_path / "ear"), role="speech-to-text")
    (hearing,) = check_hearing(settings, {})
    assert (hearing.name, hearing.status) == ("hearing", "warn")
    assert hearing.detail.startswith("ear: torch computes: no voice is installed")
    assert "`edgewise models encoders ear --measure --samples FOLDER`" in hearing.remedy
    on_card = check_hearing(settings, {"cuda": {"devices": [{}]}})
    assert [(one.status, one.detail) for one in on_card] == [("ok", "ear: torch computes on the card")]

    digest = store.manifest("ear").digest
    place = ladder_folder(store.root, digest) / place_name(RUNTIME, cpu_family(), 1)
    judge = Judge(kind="voice", name="kokoro", inputs=3, words=83, right=80)
    record = replace(ladder_record("torch-float32", None), digest=digest, device=cpu_family(), judge=judge)
    write_winner(place, record, None)
    (hearing,) = check_hearing(settings, {})
    assert (hearing.status, hearing.remedy) == ("ok", "")
    assert hearing.detail.endswith("judged by 3 readings by the voice kokoro, of whose 83 words float32 writes 80")
