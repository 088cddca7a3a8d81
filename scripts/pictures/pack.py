"""Puts a trained model into the repository: `python -m scripts.pictures.pack --run DIR --data DIR`.

The averaged weights that a run wrote are in 8 bits already. They are loaded as a user would, measured against the limits, copied
to the folder that ships, and the lines for `edgewise.models.catalog_pictures` are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Final

import torch

from edgewise.models.diffusion.protocol import Brief
from edgewise.models.diffusion.starter.files import CONFIG, TEXT_WEIGHTS, TOKENIZER, WEIGHTS, load_starter
from edgewise.models.files import ModelFiles
from edgewise.models.sources.packaged import ROOT

SHIPPED: Final = ROOT / "diffusion/starter/weights"
MOST_BYTES: Final = 24_000_000
MOST_SECONDS: Final = 4.0
"""For one picture on two processor cores."""


def load(run: Path, data: Path) -> ModelFiles:
    """The run's network with the encoder that it was trained with."""
    paths = {name: run / name for name in (CONFIG, WEIGHTS)} | {name: data / name for name in (TEXT_WEIGHTS, TOKENIZER)}
    return ModelFiles(name="trained", digest="", format="safetensors", paths=paths)


def seconds_a_picture(files: ModelFiles) -> float:
    """Of the second picture with the model's own steps and guidance, on the threads that torch has."""
    model = load_starter(files)
    traits = model.traits
    brief = Brief(
        prompt="a red apple",
        negative_prompt="",
        width=traits.best[0],
        height=traits.best[1],
        steps=traits.steps,
        guidance=traits.guidance,
        seed=0,
    )
    took = 0.0
    for _ in range(2):
        began = time.monotonic()
        with torch.inference_mode():
            canvas = model.begin(brief)
            while not canvas.done:
                for _ in model.step([canvas]):
                    pass
            model.decode(canvas)
        took = time.monotonic() - began
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="what scripts.pictures.train wrote")
    parser.add_argument("--data", type=Path, required=True, help="the training folder; holds the encoder")
    options = parser.parse_args()
    size = (options.run / WEIGHTS).stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{options.run / WEIGHTS} has {size} bytes; at most {MOST_BYTES} ship.")
    torch.set_num_threads(2)
    took = seconds_a_picture(load(options.run, options.data))
    print(f"{took:.2f} s a picture on two threads (limit {MOST_SECONDS} s)")
    SHIPPED.mkdir(exist_ok=True)
    for name in (CONFIG, WEIGHTS):
        data = (options.run / name).read_bytes()
        (SHIPPED / name).write_bytes(data)
        print(f'StoredFile(name="{name}", sha256="{hashlib.sha256(data).hexdigest()}", size={len(data):_})')


if __name__ == "__main__":
    main()
