"""Which plan an engine launches kernels by. No card: what torch and Triton say of one is put in their place."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from edgewise.core.errors import ConfigError, StorageError
from edgewise.core.files import alone
from edgewise.engine import kernel_plan
from edgewise.engine.config import EngineConfig
from edgewise.engine.kernel_plan import Launches, launches_for, tune_model
from edgewise.engine.networks import describe
from edgewise.engine.numerics import Numerics
from edgewise.kernels.tuned import Place, Tuned, save
from edgewise.models.tiny import local_files, make_tiny_model
from tests.kernels.interpreter import interpreted

PLACE = Place(card="a", capability="9.0", driver="1", torch="2", triton="3", sources="x")
DEVICE = torch.device("cpu")


def numerics(kernels: str) -> Numerics:
    return Numerics("cuda", "bfloat16", "int8", "none", (), kernels)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    for name in (
        "attention_trials",
        "plan",
        "post_norm",
        "product_trials",
        "tuning",
        "place",
        "embed",
        "sampling",
        "step_rows",
    ):
        interpreted(name)
    from edgewise.kernels.triton import place

    monkeypatch.setattr(place, "place_of", lambda device: PLACE)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a")
    files = local_files(make_tiny_model(tmp_path / "model"))
    return EngineConfig(model=files, kernel_cache_dir=str(tmp_path / "kernels"))


def found(config: EngineConfig, kernels: str = "triton") -> Launches:
    network = describe(config.model)
    return launches_for(config, network, numerics(kernels), DEVICE, lambda share, what: None)


def kept(config: EngineConfig, plan: Mapping[str, Any], failed: str = "") -> Path:
    from edgewise.models.decoder.cuda.tuning import shape_name

    network: Any = describe(config.model)
    shape = shape_name(kernel_plan._aim(config, network, numerics("triton"), DEVICE))
    tuned = Tuned(place=PLACE, shape=shape, plan=plan, trials=(), when="now", seconds=1.0, figures={}, failed=failed)
    return save(Path(config.kernel_cache_dir or ""), tuned)


def test_what_was_measured_is_used_and_named(config: EngineConfig) -> None:
    from edgewise.kernels.triton.decode_attention import AttentionForm
    from edgewise.kernels.triton.plan import Plan

    assert found(config) == Launches()
    document = Plan(attention_form=AttentionForm(512, 4, True)).document()
    path = kept(config, document)
    assert found(config).label == "s512w4h"
    assert Plan.of(found(config).document or {}).attention_form.split_tokens == 512
    assert found(config, "reference") == Launches()
    assert found(replace(config, kernel_tuning="off")) == Launches()
    path.write_text("no json")
    assert found(config) == Launches()
    kept(config, {"form": "?"})
    assert found(config) == Launches()


@pytest.mark.parametrize(("rows", "quantize", "form"), [(1, "int4", "integers"), (8, "int8", "ptx"), (8, "none", "")])
def test_rounded_weights_have_defaults_of_their_own_on_hopper(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch, rows: int, quantize: Any, form: str
) -> None:
    from edgewise.kernels.triton import plan

    own, network = replace(config, max_running=rows, kernel_tuning="off"), describe(config.model)
    rounded = replace(numerics("triton"), quantize=quantize)
    assert launches_for(own, network, rounded, DEVICE, lambda share, what: None) == Launches()
    monkeypatch.setattr(plan, "capability", lambda device: (9, 0))
    launches = launches_for(own, network, rounded, DEVICE, lambda share, what: None)
    assert launches.label == form
    assert (launches.document is None) == (not form)
    if launches.document is not None:
        assert plan.Plan.of(launches.document).form == form


def test_it_is_measured_at_load_where_that_is_asked_for(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def tune(aim: Any, device: torch.device, *, place: Place, progress: Any, **_: Any) -> Tuned:
        from edgewise.kernels.triton.plan import DEFAULT_PLAN
        from edgewise.models.decoder.cuda.tuning import shape_name

        progress(0.5, "half")
        measured.append(shape_name(aim))
        return Tuned(
            place=place, shape=measured[-1], plan=DEFAULT_PLAN.document(), trials=(), when="n", seconds=1.0, figures={}
        )

    from edgewise.models.decoder.cuda import tuning

    monkeypatch.setattr(tuning, "tune", tune)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("P", (), {"L2_cache_size": 1}))
    asked = replace(config, kernel_tuning="load")
    told: list[str] = []
    for _ in range(2):
        launches_for(asked, describe(config.model), numerics("triton"), DEVICE, lambda share, what: told.append(what))
    assert len(measured) == 1  # the second load found the record
    assert told == ["half"]


def said(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """Fields of what was logged, by event."""
    return {record.getMessage(): vars(record)["edgewise_fields"] for record in caplog.records}


@pytest.fixture
def loads(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Tuned]], Launches]:
    """Loads with `kernel_tuning` "load" and the given tuner."""
    from edgewise.models.decoder.cuda import tuning

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("P", (), {"L2_cache_size": 1}))

    def load(tune: Callable[..., Tuned]) -> Launches:
        monkeypatch.setattr(tuning, "tune", tune)
        return found(replace(config, kernel_tuning="load"))

    return load


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no room"), RuntimeError("other"), StorageError("full"), ValueError("bad journal")]
)
def test_an_engine_starts_where_nothing_can_be_measured(
    loads: Any, error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Tuned:
        raise error

    assert loads(fails) == Launches()
    assert "kernels_not_tuned" in caplog.text
    if isinstance(error, RuntimeError):
        from edgewise.kernels.triton import tuning

        monkeypatch.setattr(tuning, "device_lost", lambda: True)
        with pytest.raises(RuntimeError):
            loads(fails)


def test_one_process_tunes_at_a_time(loads: Any, config: EngineConfig, caplog: pytest.LogCaptureFixture) -> None:
    def never(*_: Any, **__: Any) -> Tuned:
        raise AssertionError

    with alone(Path(config.kernel_cache_dir or ""), f"{PLACE.key}-tuning.lock", "tuner of kernels"):
        assert loads(never) == Launches()
    assert "another tuner of kernels uses" in said(caplog)["kernels_not_tuned"]["reason"]


def test_failed_tuning_is_loud_at_every_load(config: EngineConfig, caplog: pytest.LogCaptureFixture) -> None:
    from edgewise.kernels.triton.plan import DEFAULT_PLAN

    kept(config, DEFAULT_PLAN.document(), failed="add int8 64x64 r16: all refused")
    assert found(config).label == ""
    assert said(caplog)["kernel_tuning_failed"]["site"] == "add int8 64x64 r16: all refused"


def test_a_stop_while_tuning_raises_and_again_forgets(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """`edgewise kernels tune` that is ended by SIGTERM: what is under way can still say that it is no death."""
    from edgewise.models.decoder.cuda import tuning

    monkeypatch.setattr(kernel_plan, "resolve", lambda **_: numerics("triton"))
    journal = Path(config.kernel_cache_dir or "") / f"{PLACE.key}-trying.log"
    journal.parent.mkdir()
    journal.write_text('{"trying": "", "deaths": {"x": 2}}')
    seen: list[set[str]] = []

    def stopped(*_: Any, journal: Any, **__: Any) -> Tuned:
        seen.append(journal.fatal)
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(tuning, "tune", stopped)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("P", (), {"L2_cache_size": 1}))
    for again in (False, True):
        with pytest.raises(SystemExit):
            tune_model(config, describe(config.model), lambda share, what: None, again=again)
    assert seen == [{"x"}, set()]
    assert signal.getsignal(signal.SIGTERM) is before


def test_memory_of_random_pages_is_counted(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of one byte a number are drawn as float32, three times over."""
    network: Any = describe(config.model)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 20, 1 << 20))
    tokens = kernel_plan._aim(config, network, numerics("triton"), DEVICE).most_tokens
    assert tokens * (2 + 12) * network.num_kv_heads * network.head_dim <= 1 << 18


def test_other_kernels_are_not_tuned(config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match="only Triton's kernels are tuned"):
        tune_model(replace(config, device="cpu"), describe(config.model), lambda share, what: None)
