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
from edgewise.kernels.tuned import Place, Tuned  # noqa: E402
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

    def stepped(self: Any, plan: Plan, rows: int) -> Sequence[Callable[[], object]]:
        seen.append("default" if plan == DEFAULT_PLAN else plan.products[site("gated", torch.float16, (128, 32), rows)])
        return [lambda: None]

    monkeypatch.setattr(WholeStep, "calls", stepped)

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
        "attention 128/4/False 2/1x16 float16 over float16 8x48 r8",
    }
    assert tuned.figures["8"] == {"default": 2.0, "default cuts": 2.0, "apart": 1.0}
    assert tuned.failed == ""


class Clock:
    """Names what is timed. Whatever is right is 2.0 long, but for what `times` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Any, int], bool], **times: float) -> None:
        self._times, self._now, self.steps = times, "", list[Plan]()
        monkeypatch.setattr(ProductTrial, "problem", lambda _, cut, rows: "wrong" if wrong(cut, rows) else "")
        monkeypatch.setattr(AttentionTrial, "problem", lambda _, form, cut: "wrong" if wrong(cut, 0) else "")
        monkeypatch.setattr(ProductTrial, "calls", lambda _, cut, rows: self._say(cut.form if cut.stages == 3 else ""))
        monkeypatch.setattr(AttentionTrial, "calls", lambda _, *how: self._say("attention"))
        monkeypatch.setattr(WholeStep, "calls", lambda _, plan, rows: self._step(plan, rows))
        monkeypatch.setattr(WholeStep, "problem", lambda *_: "")
        monkeypatch.setattr(tuning, "attention_forms", lambda _: FORMS[:1])

    def __call__(self, calls: object) -> float:
        return self._times.get(self._now, 2.0)

    def tune(self, **changes: Any) -> Tuned:
        with torch.inference_mode():
            return tuning.tune(aim(**changes), CPU, place=PLACE, timer=self, progress=lambda share, what: None)

    def _say(self, what: str) -> Sequence[Callable[[], object]]:
        self._now = what
        return [lambda: None]

    def _step(self, plan: Plan, rows: int) -> Sequence[Callable[[], object]]:
        self.steps.append(plan)
        cut = plan.products.get(site("gated", torch.int8, (128, 32), rows))
        kind = "default" if cut is None else "cuts" if cut.stages == 4 else "overlapped" if cut.overlapped else "apart"
        return self._say(f"{kind}{rows}")


def in_form(*_: Any) -> list[Blocks]:
    """By default 4 stages; then 3, alone and overlapped."""
    cut = Blocks(16, 512, 4, form=_[-1])
    return [cut, cut._replace(stages=3), cut._replace(stages=3, overlapped=True)]


def test_a_form_must_be_right_in_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quickest form has only overlapped cuts for 16 rows; the next is taken."""
    monkeypatch.setattr(tuning, "product_candidates", in_form)
    clock = Clock(
        monkeypatch, lambda cut, rows: rows == 16 and cut.form == "integers" and not cut.overlapped, integers=0.5, ptx=1.0,
        apart8=1.0, apart16=1.0,
    )  # fmt: skip
    tuned = clock.tune(max_rows=16, quantize="int8")
    plan = Plan.of(tuned.plan)
    assert plan.form == "ptx"
    assert {cut.form for cut in plan.products.values()} == {"ptx"}
    assert len(plan.products) == 2 * len({name.rpartition(" ")[0] for name in plan.products})
    assert tuned.failed == ""


@pytest.mark.parametrize("attention", [False, True])
def test_where_nothing_is_right_it_is_said(monkeypatch: pytest.MonkeyPatch, attention: bool) -> None:
    monkeypatch.setattr(tuning, "product_candidates", in_form)

    def wrong(cut: Any, rows: int) -> bool:
        return isinstance(cut, AttentionBlocks) if attention else rows == 16

    tuned = Clock(monkeypatch, wrong).tune(max_rows=16, quantize="int8")
    assert Plan.of(tuned.plan) == DEFAULT_PLAN
    assert tuned.failed.startswith("attention 256/4/False 2/1x16" if attention else "project int8 64x32 r16")


def test_a_form_that_gains_nothing_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products alone are quicker as integers, steps are not; then bits stay what they are by default."""
    monkeypatch.setattr(tuning, "product_candidates", in_form)
    times = {"integers": 0.5, "default8": 1.0, "default16": 3.0, "apart8": 2.0}
    tuned = Clock(monkeypatch, lambda cut, rows: False, **times).tune(max_rows=16, quantize="int8")
    assert Plan.of(tuned.plan) == DEFAULT_PLAN
    assert tuned.failed == ""
    assert "no less time" in tuned.refused[-1].why_not
    tuned = Clock(monkeypatch, lambda cut, rows: False, **times, apart16=1.5).tune(max_rows=16, quantize="int8")
    assert Plan.of(tuned.plan).form == "integers"


def test_cuts_that_lose_to_the_default_in_their_form_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "product_candidates", in_form)
    times = {"integers": 0.5, "apart8": 1.0, "cuts16": 1.0, "cuts8": 1.5, "overlapped8": 0.5}
    clock = Clock(monkeypatch, lambda cut, rows: cut.stages == 4 and rows == 8 and cut.form == "integers", **times)
    plan = Plan.of(clock.tune(max_rows=16, quantize="int8").plan)
    cuts = {rows: {cut for name, cut in plan.products.items() if name.endswith(f"r{rows}")} for rows in (8, 16)}
    assert cuts[16] == {in_form("integers")[0]}
    assert cuts[8] == {in_form("integers")[2]}
    plans = [step for step in clock.steps if step.products]
    refused = in_form("integers")[0]
    assert all(cut != refused for step in plans for name, cut in step.products.items() if name.endswith("r8"))


@torch.inference_mode()
def test_every_row_of_a_batch_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = WholeStep(small(), torch.float16, "float16", "none", CPU, 48)

    def logits(self: Any, step: Any, rows: Sequence[int]) -> torch.Tensor:
        found = torch.tensor(rows).float()[:, None] + torch.ones(1, 4)
        found[6:] *= 1.001
        return found

    monkeypatch.setattr(WholeStep, "_logits", logits)
    assert whole.problem(DEFAULT_PLAN, [8]) == "a row's bits differ alone and among 8"


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
            aim(quantize="fp8"),
            aim(kv_dtype="int8"),
            aim(max_rows=9),
            aim(config=small(qk_norm=True)),
        )
    }
    assert len(names) == 6
    assert aim(quantize="fp8").codes == torch.float8_e4m3fn
    assert tuning.shape_name(aim(max_rows=5)) == tuning.shape_name(aim())


def test_what_the_memory_holds_is_timed() -> None:
    assert tuning._work(aim(max_rows=64, max_context=1 << 20, most_tokens=4096)) == [
        (1, 256), (8, 512), (16, 256), (64, 64), (1, 4096), (32, 128),
    ]  # fmt: skip
