"""A decoder is tuned as a whole, under Triton's interpreter with a clock of its own; most of the time goes into interpreting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.kernels.interpreter import interpreted

for name in (
    "attention_trials",
    "candidates",
    "plan",
    "post_norm",
    "product_trials",
    "tuning",
    "embed",
    "sampling",
    "step_rows",
):
    interpreted(name)

from edgewise.kernels.triton.attention_trials import AttentionTrial  # noqa: E402
from edgewise.kernels.triton.blocks import Blocks  # noqa: E402 - Triton must be told to interpret before it is imported
from edgewise.kernels.triton.decode_attention import AttentionBlocks, AttentionForm  # noqa: E402
from edgewise.kernels.triton.plan import DEFAULT_PLAN, Plan, site  # noqa: E402
from edgewise.kernels.triton.product_trials import ProductTrial  # noqa: E402
from edgewise.kernels.tuned import Place  # noqa: E402
from edgewise.models.decoder.config import DecoderConfig  # noqa: E402
from edgewise.models.decoder.cuda import tuning  # noqa: E402
from edgewise.models.decoder.cuda.whole_step import WholeStep  # noqa: E402
from tests.bench.gpu_shapes import SHAPES  # noqa: E402

CPU = torch.device("cpu")
PLACE = Place(card="a", capability="9.0", driver="1", torch="2", triton="3", sources="x")
QUICK = Blocks(16, 256, 2)
FORMS = [AttentionForm(), AttentionForm(128)]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about NaN in padding


def small(**changes: Any) -> DecoderConfig:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "vocab_size": 64,
        "max_position_embeddings": 256,
    }
    return replace(DecoderConfig.from_hf({**SHAPES["llama-1b"], **sizes}), **changes)


def aim(**changes: Any) -> tuning.Aim:
    settled = tuning.Aim(
        config=small(), dtype=torch.float16, kv_dtype="float16", quantize="none", max_rows=8, max_context=48
    )
    return replace(settled, **changes)


def test_what_is_right_and_quickest_makes_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock favours one cut and one form of attention; another cut cannot be compiled."""
    broken = Blocks(16, 100, 2)
    monkeypatch.setattr(tuning, "product_candidates", lambda *_: [Blocks(16, 512, 2), QUICK, broken])
    monkeypatch.setattr(tuning, "attention_forms", lambda _: FORMS)
    monkeypatch.setattr(tuning, "attention_candidates", lambda *_: [AttentionBlocks(2)])
    seen: list[Any] = []
    own = ProductTrial.calls

    def calls(self: Any, cut: Blocks, rows: int) -> Sequence[Callable[[], object]]:
        seen.append(cut)
        return own(self, cut, rows)

    monkeypatch.setattr(ProductTrial, "calls", calls)

    def attended(self: Any, form: AttentionForm, *_: Any) -> Sequence[Callable[[], object]]:
        seen.append(form)
        return [lambda: None]

    monkeypatch.setattr(AttentionTrial, "calls", attended)

    def clock(calls: Sequence[Callable[[], object]]) -> float:
        return 1.0 if seen[-1] in (QUICK, FORMS[1]) else 2.0

    told: list[float] = []
    with torch.inference_mode():
        tuned = tuning.tune(aim(), CPU, place=PLACE, timer=clock, progress=lambda share, what: told.append(share))
    plan = Plan.of(tuned.plan)
    assert plan.attention_form == FORMS[1]
    assert plan.label == "s128w4"
    assert set(plan.products.values()) == {QUICK}
    assert site("gated", torch.float16, (128, 32), 1) in plan.products
    assert told == sorted(told)
    assert told[-1] == 1.0
    refused = {trial.candidate["inner"] for trial in tuned.refused if "inner" in trial.candidate}
    assert refused == {100}, tuned.refused
    used = [trial for trial in tuned.trials if trial.chosen]
    assert {trial.site for trial in used} >= {
        site("gated", torch.float16, (128, 32), 1),
        "attention 128/4/False 8x48 r8",
    }
    assert tuned.figures["8"] == {"default": 1.0, "apart": 1.0}


@torch.inference_mode()
def test_a_whole_step_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = WholeStep(small(), torch.float16, "int8", "none", CPU, 48)
    true = WholeStep._logits

    def spoilt(self: Any, step: Any, rows: Sequence[int]) -> torch.Tensor:
        logits = true(self, step, rows)
        return logits * 1.001 if len(rows) > 1 else logits

    monkeypatch.setattr(WholeStep, "_logits", spoilt)
    assert whole.problem(DEFAULT_PLAN, [8]) in {f"a row's bits differ alone and among {count}" for count in (5, 8)}


def test_names_tell_shapes_apart() -> None:
    names = {
        tuning.shape_name(each)
        for each in (
            aim(),
            aim(quantize="int4"),
            aim(kv_dtype="int8"),
            aim(max_rows=9),
            aim(config=small(qk_norm=True)),
        )
    }
    assert len(names) == 5
    assert tuning.shape_name(aim(max_rows=5)) == tuning.shape_name(aim())


def test_what_the_memory_holds_is_timed() -> None:
    assert tuning._work(aim(max_rows=64, max_context=1 << 20, most_tokens=4096)) == [
        (1, 256), (8, 512), (16, 256), (64, 64), (1, 4096), (32, 1024),
    ]  # fmt: skip
