"""Encoders on a CUDA card, for the acceptance lines: random weights and inputs, and what a ladder's records must say."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from edgewise.models.encoders.card_ladder import CardLadder, Reference
from edgewise.models.encoders.ladder import Candidate
from edgewise.models.encoders.layers import TransformerLayer
from edgewise.models.encoders.record import CandidateRecord
from edgewise.models.vision.efficientnet import SIDE
from tests.accept.line import NotRun, progress

ON_CARD = ("tensorrt-fp16", "cuda-fp32", "cuda-fp16", "cuda-graph-fp16", "torch-graph-fp16")
GATE = 0.999


def need_card() -> None:
    if not torch.cuda.is_available():
        raise NotRun("no CUDA device")


class Vit(torch.nn.Module):
    """ViT-B/16 with random weights: pictures [n, 3, 224, 224] to states [n, 197, 768]."""

    def __init__(self, *, width: int = 768, layers: int = 12, heads: int = 12, inner: int = 3072) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = torch.nn.Conv2d(3, width, 16, 16)
        self.first = torch.nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = torch.nn.Parameter(torch.randn(1, 1 + (SIDE // 16) ** 2, width) * 0.02)
        self.layers = torch.nn.ModuleList(TransformerLayer(width, heads, inner, 1e-12) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width, 1e-12)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        patches = self.patches(pictures).flatten(2).transpose(1, 2)
        states = torch.cat([self.first.expand(patches.shape[0], -1, -1), patches], dim=1) + self.places
        for layer in self.layers:
            states = layer(states)
        normed: torch.Tensor = self.norm(states)
        return normed


def vit_reference() -> Reference:
    """Its weights are random, so pictures of nothing do: smooth shades, in the range of normalised pixels."""
    shades = torch.Generator().manual_seed(0)
    coarse = torch.rand(8, 1, 3, 14, 14, generator=shades) * 4 - 2
    judged = [torch.nn.functional.interpolate(it, (SIDE, SIDE), mode="bilinear").numpy() for it in coarse]
    return Reference(module=Vit().eval().requires_grad_(False), judged=judged, gate=GATE)


def climb(reference: Reference, folder: Path, **options: Any) -> tuple[Candidate, list[CandidateRecord]]:
    ladder = CardLadder(reference, folder, threads=torch.get_num_threads(), **options)
    return ladder.climb(lambda stage, share: progress(f"{share:4.0%} {stage}"))


def faults(records: Sequence[CandidateRecord], gate: float) -> list[str]:
    """What a ladder's records must not say."""
    wrong = []
    built = [it for it in records if it.cosine_min is not None]
    (chosen,) = [it for it in records if it.chosen]
    passed = [it for it in built if it.passed]
    if chosen not in passed:
        wrong.append(f"{chosen.name} was chosen and does not pass the gate")
    quickest = min(passed, key=lambda it: (it.ms_one or 0) * (it.ms_many or 0))
    if quickest is not chosen:
        wrong.append(f"{quickest.name} is quicker than {chosen.name}")
    for it in records:
        if not it.chosen and not it.why:
            wrong.append(f"{it.name} lost without a reason")
        if it.name in ON_CARD and "CPUExecutionProvider" in it.nodes:
            wrong.append(f"{it.name} has nodes on the CPU: {it.nodes}")
        if it.name.startswith("cuda-") and it in built and not it.nodes.get("CUDAExecutionProvider"):
            wrong.append(f"{it.name} has no node on the card")
    names = [it.name for it in records]
    wrong += [f"{name} is not in the record" for name in (*ON_CARD, "cpu-fp32") if name not in names]
    tensorrt = next(it for it in records if it.name == "tensorrt-fp16")
    if tensorrt.cosine_min is None and not (
        "libnvinfer" in tensorrt.why or "TensorrtExecutionProvider" in tensorrt.why
    ):
        wrong.append(f"the missing library of TensorRT is not named: {tensorrt.why}")
    return wrong


def cuda_rung(records: Sequence[CandidateRecord]) -> str:
    """Whether ONNX Runtime's CUDA rungs were measured here, and how they did."""
    rungs = [it for it in records if it.name.startswith("cuda-")]
    return "; ".join(f"{it.name} " + ("chosen" if it.chosen else it.why) for it in rungs)


def shown(records: Sequence[CandidateRecord], many: int) -> str:
    """Each rung with its milliseconds."""
    parts = []
    for it in records:
        times = "not built" if it.ms_many is None else f"{it.ms_many:.2f} ms"
        parts.append(f"{it.name} {times}{' (chosen)' if it.chosen else ''}")
    return f"batch {many}: " + ", ".join(parts)


def details(records: Sequence[CandidateRecord]) -> dict[str, Any]:
    runtime = {it: importlib.metadata.version(it) for it in ("torch",)}
    import onnxruntime

    return {
        "device": torch.cuda.get_device_name(),
        "torch": runtime["torch"],
        "onnxruntime": onnxruntime.__version__,
        "candidates": [asdict(it) for it in records],
    }
