"""The tuner: what is wrong is refused by name, what is right is chosen by time. Kernels run under Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from edgewise.kernels.tuned import Place, Trial, Tuned, load, records, save
from tests.kernels.interpreter import interpreted

blocks = interpreted("blocks")
candidates = interpreted("candidates")
tuning = interpreted("tuning")
plans = interpreted("plan")
product_trials = interpreted("product_trials")
attention_trials = interpreted("attention_trials")
attention = interpreted("decode_attention")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, which interprets

CPU = torch.device("cpu")
SMALL = blocks.Blocks(16, 512, 2)
PLACE = Place(card="a", capability="9.0", driver="1", torch="2", triton="3", sources="x")


def by_columns(calls: Sequence[Callable[[], object]]) -> float:
    """Time is what the calls say."""
    return float(calls[0]())  # type: ignore[arg-type]


def test_the_quickest_that_is_right_is_chosen() -> None:
    found = [SMALL, SMALL._replace(columns=32), SMALL._replace(columns=64), SMALL._replace(stages=9)]
    times = {32: 1.0, 16: 5.0, 64: 2.0}

    def problem(cut: Any) -> str:
        if cut.stages == 9:
            raise RuntimeError("out of resources\nmore")
        return "wrong" if cut.columns == 32 else ""

    tuner = tuning.Tuner(by_columns)
    choice = tuner.choose("here", found, problem, lambda cut: [lambda: times[cut.columns]])
    assert (choice.best, choice.us) == (found[2], 2.0)
    assert choice.overlapped is None
    assert [trial.why_not for trial in tuner.trials] == ["", "wrong", "", "RuntimeError: out of resources"]


def test_what_overlaps_is_kept_apart() -> None:
    found = [SMALL, SMALL._replace(overlapped=True)]
    choice = tuning.Tuner(by_columns).choose("x", found, lambda cut: "", lambda cut: [lambda: 3.0 - cut.overlapped])
    assert choice == (found[1], 2.0, found[0], 3.0, found[1], 2.0, found[0])


def test_nothing_is_chosen_where_all_is_wrong() -> None:
    choice = tuning.Tuner(by_columns).choose("x", [SMALL], lambda cut: "bad", lambda cut: [])
    assert choice.best is choice.apart is choice.overlapped is choice.default is None


def test_what_a_process_died_of_is_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.json"

    class Killed(BaseException):
        pass

    def dies(cut: Any) -> str:
        raise Killed

    for deaths in range(2):
        tuner = tuning.Tuner(by_columns, tuning.Journal(path))
        assert tuner._journal.fatal == set(), deaths
        tuner._journal.end = lambda: None  # a process that is gone writes nothing more
        with pytest.raises(Killed):
            tuner.choose("x", [SMALL], dies, lambda cut: [])
    again = tuning.Tuner(by_columns, tuning.Journal(path))
    choice = again.choose("x", [SMALL, SMALL._replace(stages=3)], lambda cut: "", lambda cut: [lambda: 1.0])
    assert choice.best.stages == 3
    assert again.trials[0].why_not == "the device was lost, or processes died, while this was tried"
    assert tuning.Journal(path).fatal == tuning.Journal(path).fatal != set()


def test_an_orderly_end_blames_nothing_and_a_lost_device_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.json"

    def stops(cut: Any) -> str:
        raise SystemExit(143)

    for _ in range(3):
        with pytest.raises(SystemExit):
            tuning.Tuner(by_columns, tuning.Journal(path)).choose("x", [SMALL], stops, lambda cut: [])
    assert tuning.Journal(path).fatal == set()
    monkeypatch.setattr(tuning, "device_lost", lambda: True)
    tuning.Tuner(by_columns, tuning.Journal(path)).choose("x", [SMALL], lambda cut: "bad", lambda cut: [])
    (name,) = tuning.Journal(path).fatal
    assert name.startswith("x {")
    path.write_text('{"fatal": []}')
    with pytest.raises(ValueError, match="tune --again"):
        tuning.Journal(path)


@pytest.mark.parametrize(
    ("kind", "codes", "form"),
    [
        ("project", torch.int8, "integers"),
        ("gated", torch.uint8, "integers"),
        ("add", torch.bfloat16, "plain"),
        ("gated", torch.float8_e4m3fn, "ptx"),
        ("add", torch.float8_e4m3fn, "native"),
    ],
)
def test_candidates_compute_what_they_must(kind: str, codes: torch.dtype, form: str) -> None:
    trial = product_trials.ProductTrial(
        kind, codes, (64, 512), dtype=torch.bfloat16, device=CPU, biased=True, most_rows=8
    )
    cuts = candidates.product_candidates(codes, (64, 512), 8, kind == "gated", CPU, form)
    for cut in [cuts[0], cuts[-1]] if form == "integers" else cuts[:2]:
        reason = trial.problem(cut, 8)
        # numpy's products of floats depend on their sizes; sums of integers do not.
        allowed = (
            {""} if form == "integers" else {"", "a row's bits differ from those that it has alone by the default"}
        )
        assert reason in allowed, cut
    assert trial.calls(cuts[0], 8)[0]() is None


def test_a_product_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = product_trials.ProductTrial("project", torch.int8, (32, 64), dtype=torch.bfloat16, device=CPU, most_rows=8)
    true = product_trials.project
    cut = SMALL._replace(form="integers")

    def spoilt(how: Callable[[torch.Tensor], object]) -> str:
        def project(r: Any, w: Any, eps: float, out: torch.Tensor, cut: Any) -> None:
            true(r, w, eps, out, cut)
            how(out)

        monkeypatch.setattr(product_trials, "project", project)
        reason: str = trial.problem(cut, 8)
        return reason

    assert "not written" in spoilt(lambda out: out[-1, 5:6].fill_(torch.nan))
    assert "an error of" in spoilt(lambda out: out.mul_(1.1))
    assert "a row's bits differ" in spoilt(lambda out: out[0, :1].mul_(1.01) if len(out) == 8 else None)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.int8])
def test_attention_is_judged(stored: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = (
        torch.bfloat16 if stored == torch.bfloat16 else torch.float16
    )  # the interpreter makes no bfloat16 of integers
    shape = attention_trials.AttentionShape(
        heads=4, kv_heads=2, head_dim=16, stored=stored, dtype=dtype, scale=0.25, normed=True
    )
    trial = attention_trials.AttentionTrial(shape, CPU, most_tokens=64, max_context=300)
    forms = candidates.attention_forms(stored)
    for form in (forms[0], forms[-1]):
        assert trial.problem(form, attention.AttentionBlocks(2)) == "", form
    trial.calls(forms[0], attention.AttentionBlocks(), 2, 32)[0]()
    true = attention_trials.decode_attention

    def spoilt(how: Callable[[torch.Tensor, Any, torch.Tensor], object]) -> str:
        """`how` changes results, or pages, of which each row's are given."""

        def attended(
            qkv: torch.Tensor, kv: Any, positions: torch.Tensor, slots: torch.Tensor, *a: Any, **o: Any
        ) -> Any:
            out = true(qkv, kv, positions, slots, *a, **o)
            how(out, kv, slots)
            return out

        monkeypatch.setattr(attention_trials, "decode_attention", attended)
        reason: str = trial.problem(forms[0], attention.AttentionBlocks())
        return reason

    def turned(out: torch.Tensor, kv: Any, slots: torch.Tensor) -> None:
        """The last bit of a stored key, in batches alone."""
        if len(out) > 1:
            kv.k.view(torch.uint8)[slots[-1] // 16, 1, slots[-1] % 16, 0] ^= 1

    assert "an error of" in spoilt(lambda out, kv, slots: out.mul_(1.1))
    assert "other keys or values" in spoilt(lambda out, kv, slots: kv.v[slots[0] // 16, 0, slots[0] % 16].neg_())
    assert "stores other bits" in spoilt(turned)


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
def test_stored_codes_may_be_one_apart(stored: torch.dtype) -> None:
    """Wherever the number lies: the largest ones of fp8 are a fourteenth apart. Two are too many, and so is another scale."""
    generator = torch.Generator().manual_seed(1)
    layer = attention_trials.random_pages((2, 2, 16, 16), stored, generator)
    codes = layer.k.view(torch.uint8)
    codes[0, 0, 0, :3] = torch.tensor([0x7E, 0x78, 0x08], dtype=torch.uint8)

    def near(step: int, at: int = 0, scale: float = 1.0) -> bool:
        other = attention_trials._copy(layer)
        other.k.view(torch.uint8)[0, 0, 0, at] += step
        assert other.k_scale is not None
        other.k_scale[1, 1, 3] *= scale
        found: bool = attention_trials._near(other, layer)
        return found

    assert near(0)
    assert all(near(-1, at) for at in range(3))
    assert not any(near(-2, at) for at in range(3))
    assert near(0, scale=1 + 1e-6)
    assert not any(near(0, scale=scale) for scale in (1.01, torch.nan))
    if stored == torch.float8_e4m3fn:
        assert not near(1)  # beyond the largest is NaN
        codes[0, 0, 0, 0] = 0  # of the two zeros a rounding may leave either
        assert near(0x80)


def test_a_plan_survives_its_document() -> None:
    plan = plans.Plan(
        form="integers",
        attention_form=attention.AttentionForm(512, 8, True),
        products={"add int8 64x64 r8": SMALL._replace(form="integers")},
        attention={8: attention.AttentionBlocks(2, 128, True, True)},
    )
    assert plans.Plan.of(plan.document()) == plan
    assert plan.label == "s512w8h.integers"
    assert plans.DEFAULT_PLAN.label == ""
    for spoilt in ({}, {**plan.document(), "form": "other"}, {**plan.document(), "products": {"a": {"columns": 3}}}):
        with pytest.raises(ValueError, match="plan of kernels"):
            plans.Plan.of(spoilt)


def test_a_plan_fills_what_was_not_measured_in_its_form() -> None:
    weight = product_trials.Weight(torch.zeros(64, 64, dtype=torch.int8), torch.zeros(64, 2, dtype=torch.float16))
    plan = plans.Plan(form="integers", products={plans.site("add", torch.int8, (64, 64), 8): SMALL})
    assert plan.product("add", weight, 5) is SMALL
    assert plan.product("add", weight, 9).form == "integers"
    assert plan.product("add", product_trials.Weight(torch.zeros(64, 64)), 9).form == "plain"
    assert plan.attend(3) == attention.DEFAULT_BLOCKS


def test_records(tmp_path: Path) -> None:
    tuned = Tuned(
        place=PLACE,
        shape="small",
        plan=plans.DEFAULT_PLAN.document(),
        trials=(Trial(site="x", candidate={"columns": 16}, us=None, why_not="bad"),),
        when="2026-01-01T00:00:00Z",
        seconds=1.0,
        figures={},
    )
    assert load(tmp_path, PLACE, "small") == (None, "")
    path = save(tmp_path, tuned)
    assert load(tmp_path, PLACE, "small") == (tuned, "")
    assert load(tmp_path, PLACE, "other") == (None, "")
    assert [one.refused[0].why_not for one in records(tmp_path)] == ["bad"]
    path.write_text("{")
    found, reason = load(tmp_path, PLACE, "small")
    assert found is None
    assert "cannot be read" in reason
    assert list(records(tmp_path)) == []
