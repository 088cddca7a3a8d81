"""Weights in 8 and 4 bits against llama.cpp's Q8_0 and Q4_0 of the same weights, on the same text: no farther from float32.

Ours is measured on the native kernels themselves, theirs by its rounding of weights and activations in float32 (held against its
own logits once: docs/quantization.md). KV pages are float32 on both sides: what those in 8 bits cost is line 5 of answers.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from edgewise.engine.build import build_parts
from edgewise.engine.calibration import quantize_file
from edgewise.engine.config import EngineConfig
from edgewise.engine.quality import Divergence, Reader, RoundedReader, divergence
from edgewise.engine.runner import Runner
from edgewise.kernels.native.formats import WeightFormat
from edgewise.kernels.native.library import why_not
from edgewise.kernels.native.packed import pack
from edgewise.models.decoder.rounded import RoundedFormat
from edgewise.models.files import ModelFiles
from edgewise.models.manifest import Role
from edgewise.models.quantize.file import QuantizedTo
from edgewise.models.store import Store
from edgewise.models.tokenizer.load import load_tokenizer
from edgewise.models.weights import ggml_rounding
from edgewise.models.weights.open import open_weights
from edgewise.pipeline.calibration_text import calibration_text
from edgewise.pipeline.gate_text import built_in_text
from tests.accept.line import Line, NotRun, Verdict, main, progress
from tests.accept.regrouped import regrouped_starter
from tests.e2e.service import starter_home, starter_model

CONTEXT = 512
PEERS: dict[QuantizedTo, RoundedFormat] = {"int8": "Q8_0", "int4": "Q4_0"}
OTHERS: tuple[tuple[str, Role], ...] = (("whisper-base", "speech-to-text"), ("minilm", "embeddings"))
"""Models whose weights come in 16 and 32 bits; by their matrices alone. The second alone where the count is small."""


def native(files: ModelFiles, to: QuantizedTo) -> Runner:
    """The engine's own runner."""
    config = EngineConfig(
        model=files,
        device="cpu",
        kernels="native",
        quantize=to,
        kv_dtype="float32",
        max_context=CONTEXT,
        max_running=1,
        prefix_cache=False,
        spill_bytes=0,
    )
    return build_parts(config, lambda _what, _done: None).runner


def judged(mine: Divergence, theirs: Divergence) -> dict[str, Any]:
    """Both figures, and whether ours are no worse: divergence strictly, agreement within two standard errors."""
    error = math.sqrt(2 * theirs.agreement * (1 - theirs.agreement) / theirs.positions)
    held = mine.mean_kl <= theirs.mean_kl and mine.agreement >= theirs.agreement - 2 * error
    return {"held": held, "ours": asdict(mine), "llama.cpp": asdict(theirs)}


def judge_model(
    files: ModelFiles, tokens: Sequence[int], calibration: Sequence[int], formats: Sequence[QuantizedTo]
) -> dict[str, Any]:
    """Rounded at the load, and (with a text to calibrate on) as a file of `models quantize`."""
    truth = Reader(files)

    def against(runner: Runner) -> Divergence:
        return divergence(truth.over("float32", CONTEXT), runner, tokens, context=CONTEXT)

    found: dict[str, Any] = {}
    for to in formats:
        progress(f"{files.name}, {to}")
        theirs = against(RoundedReader(files, PEERS[to]).over("float32", CONTEXT))
        found[to] = judged(against(native(files, to)), theirs)
        if calibration:
            with tempfile.TemporaryDirectory(prefix="edgewise-quantized-") as folder:
                out = Path(folder) / "made.gguf"
                quantize_file(files, out, to, calibration, progress=lambda _what, _done: None)
                made = ModelFiles(name=f"{to} made", digest=f"sha256:{to}", format="gguf", paths={out.name: out})
                found[f"{to} calibrated"] = judged(against(native(made, to)), theirs)
    return found


def judge_matrices(name: str, role: Role) -> dict[str, Any]:
    """Squared errors of the matrices of products, the decoder's if there is one, ours by llama.cpp's; activations left aside."""
    files = Store(starter_home() / "models").resolve(name, role)
    ratios: dict[str, list[float]] = {to: [] for to in PEERS}
    with closing(open_weights(files)) as reader:
        wide = [it for it in reader.tensors.values() if len(it.shape) == 2 and it.shape[1] % 32 == 0]
        matrices = [it for it in wide if "embed" not in it.name]
        for tensor in [it for it in matrices if "decoder" in it.name] or matrices:
            weight = torch.empty(tensor.shape)
            reader.read_into(tensor.name, weight)
            for to, form, theirs in (
                ("int8", WeightFormat.INT8_ROTATED, ggml_rounding.q8_0),
                ("int4", WeightFormat.INT4, ggml_rounding.q4_0),
            ):
                ours = float((pack(weight, form).unpack() - weight).square().sum())
                ratios[to].append(ours / float((theirs(weight) - weight).square().sum()))
    return {
        to: {
            "held": statistics.fmean(them) <= 1.0,
            "matrices": len(them),
            "mean": statistics.fmean(them),
            "worst": max(them),
        }
        for to, them in ratios.items()
    }


def measure(count: int) -> Verdict:
    if (lacking := why_not()) is not None:
        raise NotRun(lacking)
    tokenizer = load_tokenizer(starter_model())
    tokens = list(tokenizer.encode(built_in_text(), parse_special=False)[:count])
    calibrates = count >= CONTEXT
    calibration = list(tokenizer.encode(calibration_text(), parse_special=False)[:count]) if calibrates else []
    # In brief each format on one of both models: all its readers take seconds to make.
    formats = tuple(PEERS)
    first, second = (formats, formats) if calibrates else (formats[:1], formats[1:])
    details: dict[str, Any] = {"starter": judge_model(starter_model(), tokens, [], first)}
    with tempfile.TemporaryDirectory(prefix="edgewise-regrouped-") as folder:
        details["regrouped"] = judge_model(regrouped_starter(Path(folder)), tokens, calibration, second)
    installed = {it.name for it in Store(starter_home() / "models").manifests()}
    for name, role in OTHERS if calibrates else OTHERS[1:]:
        if name in installed:
            details[name] = judge_matrices(name, role)
    held = all(it["held"] for them in details.values() for it in them.values())
    figure = "; ".join(_told(model, them) for model, them in details.items())
    return Verdict(figure=figure, passed=held and calibrates and len(tokens) == count, correct=held, details=details)


def _told(model: str, found: dict[str, Any]) -> str:
    parts = []
    for to, it in found.items():
        if "worst" in it:
            parts.append(f"{to} error x {it['mean']:.2f}, at worst {it['worst']:.2f}, of {it['matrices']} matrices")
        else:
            mine, theirs = it["ours"], it["llama.cpp"]
            agree = f"{mine['agreement']:.1%} / {theirs['agreement']:.1%}"
            parts.append(f"{to} KL {mine['mean_kl']:.4f} / {theirs['mean_kl']:.4f}, same token {agree}")
    return f"{model}: " + ", ".join(parts)


LINE = Line(
    number=4,
    title="Weights in 8 and 4 bits are no farther from float32 than llama.cpp's Q8_0 and Q4_0 of the same weights",
    bar="divergence and agreement no worse, at the load and calibrated; other models' matrices no worse on the mean",
    count=2048,
    small=128,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fast_4")
