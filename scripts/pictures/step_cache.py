"""Measures the step cache: `python -m scripts.pictures.step_cache MODEL_FOLDER`.

Draws prompts of prompts.txt, each with a seed of its own, with all steps computed and with several thresholds, and
prints a table: steps computed, processor time, and how far the pictures are from those with all steps (PSNR).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from edgewise.models.diffusion.protocol import Brief, PictureModel, Pixels
from edgewise.models.diffusion.starter.files import load_starter
from edgewise.models.tiny import local_files
from scripts.pictures.judge import read_tasks

THRESHOLDS = (0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A picture, the steps that were computed for it, and the processor's seconds that all took."""

    pixels: Pixels
    computed: int
    seconds: float


def draw(model: PictureModel, brief: Brief) -> Drawn:
    """One picture by itself."""
    with torch.inference_mode():
        canvas = model.begin(brief)
        began = time.process_time()
        while not canvas.done:
            for _ in model.step([canvas]):
                pass
        return Drawn(model.decode(canvas), brief.steps - canvas.predicted, time.process_time() - began)


def likeness(one: Pixels, other: Pixels) -> float:
    """PSNR in decibels; 99 where nothing differs."""
    error = float(np.square(one.astype(np.float64) - other).mean())
    return 99.0 if error == 0 else min(99.0, 10 * float(np.log10(255**2 / error)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--first", type=int, default=0, help="prompts to leave out")
    parser.add_argument("--pictures", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50)
    given = parser.parse_args()
    model = load_starter(local_files(given.model))
    width, height = model.traits.best
    briefs = [
        Brief(
            prompt=task.prompt,
            negative_prompt="",
            width=width,
            height=height,
            steps=given.steps,
            guidance=model.traits.guidance,
            seed=seed,
        )
        for seed, task in [*enumerate(read_tasks())][given.first : given.first + given.pictures]
    ]
    whole = [draw(model, brief) for brief in briefs]
    print(
        "| threshold | steps computed | fewer steps | faster | PSNR, worst | PSNR, median |\n|---|---|---|---|---|---|"
    )
    for threshold in THRESHOLDS:
        found = [draw(model, replace(brief, cache=threshold)) for brief in briefs]
        computed = sum(one.computed for one in found) / len(found)
        faster = sum(one.seconds for one in whole) / sum(one.seconds for one in found)
        like = [likeness(one.pixels, other.pixels) for one, other in zip(found, whole, strict=True)]
        steps = f"{computed:.1f} of {given.steps} | {given.steps / computed:.1f}x"
        print(f"| {threshold:g} | {steps} | {faster:.1f}x | {min(like):.1f} dB | {median(like):.1f} dB |")


if __name__ == "__main__":
    main()
