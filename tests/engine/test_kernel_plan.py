"""Which plan an engine launches kernels by. No card: what torch and Triton say of one is put in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from edgewise.core.errors import ConfigError
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


def kept(config: EngineConfig, plan: Mapping[str, Any]) -> Path:
    from edgewise.models.decoder.cuda.tuning import shape_name

    network: Any = describe(config.model)
    shape = shape_name(kernel_plan._aim(config, network, numerics("triton"), DEVICE))
    tuned = Tuned(place=PLACE, shape=shape, plan=plan, trials=(), when="now", seconds=1.0, figures={})
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


def test_other_kernels_are_not_tuned(config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match="only Triton's kernels are tuned"):
        tune_model(replace(config, device="cpu"), describe(config.model), lambda share, what: None)
