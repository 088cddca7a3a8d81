"""`edgewise kernels` and the doctor's word on GPU kernels, with records that no card of this machine made."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from edgewise.cli import kernels
from edgewise.cli.doctor_checks import check_kernels
from edgewise.core.settings import Settings
from edgewise.kernels.tuned import Place, Trial, Tuned, save, source_digest
from edgewise.models.tiny import make_tiny_model

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def said(run: Run, *args: str) -> str:
    done = run("kernels", "show", *args)
    return done.stdout + done.stderr


def record(sources: str) -> Tuned:
    place = Place(card="Card X", capability="8.7", driver="540.4", torch="2.11", triton="3.6", sources=sources)
    trials = (
        Trial(site="add int4 64x64 r8", candidate={"columns": 16, "held": 0}, us=3.25, chosen=True),
        Trial(site="add int4 64x64 r8", candidate={"columns": 32, "held": 0}, us=None, why_not="an error of 0.5"),
    )
    return Tuned(
        place=place,
        shape="hidden 64",
        plan={},
        trials=trials,
        when="2026-11-30T00:00:00Z",
        seconds=61.0,
        figures={"8": {"default": 20.0, "apart": 15.0}},
    )


def test_what_was_measured_is_shown_with_what_was_refused(run: Run, tmp_path: Path) -> None:
    assert "Nothing was measured here" in said(run)
    folder = tmp_path / "home" / "kernels"
    save(folder, record(source_digest()))
    shown = said(run)
    assert "Card X, capability 8.7, driver 540.4" in shown
    assert "8 rows: default 20.0 us, apart 15.0 us" in shown
    assert "columns=32" in shown
    assert "an error of 0.5" in shown
    assert "columns=16" not in shown
    assert "used" in said(run, "--trials")
    assert json.loads(run("kernels", "show", "--json").stdout)["records"][0]["place"]["card"] == "Card X"
    save(folder, record("older"))
    assert "not in use" in said(run)


def test_without_a_card_nothing_is_tuned(run: Run, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "tiny", context=256)
    assert run("models", "import", str(tmp_path / "tiny"), "--name", "tiny").returncode == 0
    done = run("kernels", "tune", "tiny", EDGEWISE_ENGINE__DEVICE="cpu")
    assert done.returncode != 0
    assert "only Triton's kernels are tuned" in done.stderr


@pytest.mark.parametrize(("tuning", "status"), [("cached", "warn"), ("load", "ok"), ("off", "ok")])
def test_the_doctor_says_whether_a_card_was_measured(tmp_path: Path, tuning: str, status: str) -> None:
    settings = Settings(home=tmp_path)
    settings = settings.model_copy(update={"engine": settings.engine.model_copy(update={"kernel_tuning": tuning})})
    place = asdict(record(source_digest()).place)
    report: dict[str, Any] = {"cuda": {"devices": [{"place": place}]}}
    (check,) = check_kernels(settings, report)
    assert check.status == status
    assert list(check_kernels(settings, {"cuda": {"devices": []}})) == []
    save(tmp_path / "kernels", record(source_digest()))
    (check,) = check_kernels(settings, report)
    assert check.status == "ok"
    assert tuning == "off" or "1 candidate(s) refused" in check.detail
    for name in ("driver", "torch", "triton", "sources"):
        (other,) = check_kernels(settings, {"cuda": {"devices": [{"place": place | {name: "other"}}]}})
        assert other.status == status
        assert tuning == "off" or f"not measured on this card with this {name} yet" in other.detail
    assert list(check_kernels(settings, {"cuda": {"devices": [{"place": None}]}})) == []
    save(tmp_path / "kernels", replace(record(source_digest()), failed="add int4 64x64 r8: an error of 0.5"))
    (check,) = check_kernels(settings, report)
    assert check.status == ("ok" if tuning == "off" else "fail")
    assert tuning == "off" or "add int4 64x64 r8" in check.detail


def test_records_of_other_software_are_shown_as_not_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    own = replace(record(source_digest()), failed="add int4 64x64 r8: an error")
    kernels._print(own, own.place, all_trials=False)
    shown = capsys.readouterr().err
    assert "not in use" not in shown
    assert "failed, so defaults serve, which may be wrong: add int4 64x64 r8: an error" in shown
    kernels._print(own, replace(own.place, driver="1", torch="2"), all_trials=False)
    assert "not in use, of another driver, torch" in capsys.readouterr().err
