"""Sentences a second of an encoder beside torch: `python -m scripts.bench_encoders [--home DIR] [--threads N]`.

torch runs the network as sentence-transformers does: transformers' AutoModel in float32, mean, length one; the tokenizer is left
out on both sides. Rounds alternate, and the quickest of each side counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as untyped_transformers

from edgewise.core.settings import load_settings
from edgewise.engine.numerics import cpu_family
from edgewise.models.encoders.load import load_text_encoder
from edgewise.models.encoders.run import feed
from edgewise.models.encoders.text import load_face
from edgewise.models.encoders.text_network import sentences
from edgewise.models.files import ModelFiles
from edgewise.models.store import Store

transformers: Any = untyped_transformers
PROSE = Path(__file__).parents[1] / "appliance" / "edgewise" / "pipeline" / "gate_text.txt"
BATCHES = (1, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, help="state directory with the encoder; that of the settings by default")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    home = options.home or load_settings(None).settings.home
    store = Store(home / "models")
    files = store.resolve(options.model, "embeddings")
    encoder, _ = load_text_encoder(
        files, options.threads, store=str(store.root), samples=str(PROSE), device=cpu_family()
    )
    torch.set_num_threads(options.threads)
    network = _torch(files)
    face = load_face(files)
    rows = [
        face.tokenizer.shorten(ids, face.shape.max_tokens)
        for ids in face.tokenizer.encode(sentences(PROSE.read_text()))
    ]
    print(f"{files.name}, {encoder.precision}, {options.threads} threads")
    for count in BATCHES:
        batch = tuple(tuple(row) for row in rows[200 : 200 + count])
        ours, theirs = _quickest(lambda: encoder.compute([batch]), lambda: network(batch), options.rounds)  # noqa: B023
        print(
            f"batch {count}: {count / ours:.0f} sentences/s, torch {count / theirs:.0f}: {theirs / ours:.2f} times as many"
        )


def _torch(files: ModelFiles) -> Callable[[Any], Any]:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("config.json", "model.safetensors"):
            (Path(folder) / name).symlink_to(files.paths[name])
        network = transformers.AutoModel.from_pretrained(folder).eval()

    def encode(rows: Any) -> Any:
        fed = feed(rows)
        inputs = {"input_ids": torch.from_numpy(fed["ids"]), "attention_mask": torch.from_numpy(fed["mask"])}
        with torch.inference_mode():
            states, mask = network(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
            return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)

    return encode


def _quickest(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> tuple[float, float]:
    best = [float("inf")] * 2
    for _ in range(rounds):
        for side, call in enumerate((ours, theirs)):
            began = time.perf_counter()
            call()
            best[side] = min(best[side], time.perf_counter() - began)
    return best[0], best[1]


if __name__ == "__main__":
    main()
