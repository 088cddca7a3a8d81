"""The gate's figures on a tiny model: exact where formats are equal, worse where they are coarser, needles counted."""

from dataclasses import replace

import pytest

from edgewise.core.errors import OutOfMemory
from edgewise.engine import gate as module
from edgewise.engine import quality
from edgewise.engine.gate import GateResult, Needle, as_good, measure_formats
from edgewise.engine.quality import Reader, continues, kv_divergence
from edgewise.engine.scheduler import Work
from edgewise.models.files import ModelFiles
from edgewise.models.gate_record import BOUNDS, PEER_SLACK, PEERS

TOKENS = [(7 * position + position * position) % 500 for position in range(300)]


def test_equal_formats_do_not_diverge(tiny_model: ModelFiles) -> None:
    same = kv_divergence(tiny_model, TOKENS, kv_dtype="float32", context=128)
    assert (same.mean_kl, same.max_kl, same.agreement, same.positions) == (0, 0, 1, 300)
    assert same.perplexity == same.perplexity_float32


def test_coarser_formats_diverge_more(tiny_model: ModelFiles) -> None:
    kl = {name: kv_divergence(tiny_model, TOKENS, kv_dtype=name).mean_kl for name in ("float16", "int8", "fp8")}
    assert 0 < kl["float16"] < kl["int8"] < kl["fp8"]


Told = list[tuple[str, float]]


@pytest.fixture(scope="module")
def measured(tiny_model: ModelFiles) -> tuple[GateResult, Told]:
    """A gate's result, and the progress that it told."""
    told: Told = []
    return measure_formats(tiny_model, TOKENS, [], context=128, progress=lambda *it: told.append(it)), told


def test_every_format_is_measured_and_judged(measured: tuple[GateResult, Told]) -> None:
    result, told = measured
    names = [(it.kind, it.name) for it in result.formats]
    pages = ["int8", "fp8", "bfloat16", "float16"]
    assert names == [
        *(("kv", name) for name in pages),
        ("weights", "bfloat16"),
        ("weights", "float16"),
        ("peer", "Q8_0"),
        ("weights", "int8"),
        *(("both", f"int8/{name}") for name in pages),
        ("peer", "Q4_0"),
        ("weights", "int4"),
        *(("both", f"int4/{name}") for name in pages),
        ("weights", "fp8"),
        *(("both", f"fp8/{name}") for name in pages),
        ("handover", "int4"),
    ]
    plain = [it for it in result.formats if it.bits is None or it.kind == "both" or it.name == "fp8"]
    assert all(it.passed == (it.mean_kl <= it.bound) for it in plain)
    assert [share for _, share in told] == sorted(share for _, share in told)
    assert told[-1] == ("done", 1.0)
    found = dict(zip(names, result.formats, strict=True))
    assert found["kv", "int8"].capacity == found["both", "int4/int8"].capacity == pytest.approx(32 / 20)
    assert found["weights", "float16"].capacity is None
    assert found["weights", "fp8"].bound == BOUNDS["weights", "fp8"]
    assert found["both", "fp8/int8"].bound == BOUNDS["weights", "fp8"] + BOUNDS["kv", "int8"]
    assert 8 < (found["weights", "fp8"].bits or 0) < 8.5
    assert found["weights", "int8"].mean_kl < found["weights", "fp8"].mean_kl < found["peer", "Q4_0"].mean_kl
    assert found["handover", "int4"].capacity == pytest.approx(32 / 12)  # 16 codes of 4 bits and two float16


def test_weights_in_few_bits_are_held_to_llama_cpp(measured: tuple[GateResult, Told]) -> None:
    found = {(it.kind, it.name): it for it in measured[0].formats}
    for name, peer in PEERS.items():
        mine, theirs = found["weights", name], found["peer", peer]
        assert mine.bound == theirs.mean_kl * PEER_SLACK > 0
        assert mine.passed == as_good(mine, theirs, 300)
        assert found["both", f"{name}/int8"].bound == mine.bound + BOUNDS["kv", "int8"]
    assert found["weights", "int4"].passed
    assert found["weights", "int8"].bits == 8.5
    assert found["weights", "int8"].mean_kl < found["weights", "int4"].mean_kl < found["peer", "Q4_0"].mean_kl

    worse = replace(found["weights", "int4"], mean_kl=found["peer", "Q4_0"].mean_kl * 1.06)
    rarer = replace(found["weights", "int4"], agreement=found["peer", "Q4_0"].agreement - 0.2)
    assert not as_good(worse, found["peer", "Q4_0"], 300)
    assert not as_good(rarer, found["peer", "Q4_0"], 300)


def test_a_hand_over_is_judged_by_what_is_read_after_it(tiny_model: ModelFiles) -> None:
    reader = Reader(tiny_model)

    def over(kv_dtype: str, rounded: bool, count: int = 300) -> quality.Divergence:
        got, handed = reader.handed_over(kv_dtype, 128)
        truth = reader.over(kv_dtype, 128)
        return quality.divergence(
            truth, got, TOKENS[:count], context=128, halfway=handed.round if rounded else lambda _: None
        )

    rounded = over("bfloat16", rounded=True)
    assert rounded.positions == 64 + 64 + 28  # of 128, 128 and 44 tokens, whose first 64, 64 and 16 are given
    assert over("bfloat16", rounded=False).max_kl == 0
    assert 0 < rounded.mean_kl <= rounded.max_kl
    assert over("bfloat16", rounded=True, count=128 + 20).positions == 64  # no page would be given of the last 20


def test_a_needle_that_a_format_loses_fails_it(tiny_model: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Reader(tiny_model).over("float32", 400)
    prompt = tuple(TOKENS[:200])
    ((draw,),) = runner.run([Work(quality._sequence(prompt), 0, len(prompt), sample=True)])
    assert continues(runner, prompt, [draw.token])
    needles = [Needle(prompt, (draw.token,)), Needle(prompt, (draw.token + 1,))]
    result = measure_formats(tiny_model, TOKENS[:64], needles)
    assert result.needles_found == 1
    assert {it.name: it.needles for it in result.formats if it.kind == "kv"}["float16"] == 1

    calls = iter([True, False])  # float32 finds one, nothing else does
    monkeypatch.setattr(module, "continues", lambda *_: next(calls, False))
    formats = measure_formats(tiny_model, TOKENS[:64], needles).formats
    assert not any(it.passed for it in formats if it.needles is not None)


def test_a_model_too_large_for_two_copies_is_refused_before_loading(
    tiny_model: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_memory", lambda: 2**20)
    with pytest.raises(OutOfMemory, match="larger machine"):
        measure_formats(replace(tiny_model), TOKENS, [])
