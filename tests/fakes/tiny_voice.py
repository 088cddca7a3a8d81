"""A voice of random sounds in Kokoro's files, a few hundred kilobytes: every phoneme is ten milliseconds of its own noise."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgewise.models.files import ModelFiles

LIMIT: Final = 60
"""Phonemes in one run."""
STEP: Final = 240
"""Samples of one phoneme at 24 kHz and normal speed."""
NAMES: Final = ("voice_a", "voice_b")
WORDS: Final = {
    "hello": "h\u0259l\u02c8O",
    "world": "w\u02c8\u025c\u0279ld",
    "good": "\u0261\u02c8\u028ad",
    "one": "w\u02c8\u028cn",
    "two": "t\u02c8u",
    "three": "\u03b8\u0279\u02c8i",
    "four": "f\u02c8\u0254\u0279",
    "yes": "j\u02c8\u025bs",
}
PHONEMES: Final = (
    ";:,.!?\u2014 AIOWYabdefhijklmnpstuvwz\u00e6\u00f0\u014b\u0250\u0251\u0254\u0259\u025b\u025c\u0261\u026a\u0279\u0283"
    "\u028a\u028c\u0292\u02a4\u02a7\u02c8\u02cc\u03b8\u1d7bT"
)


def make_voice(folder: Path) -> Path:
    """The folder with all five files."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(5)
    onnx.save(_network(len(PHONEMES) + 1, chance), str(folder / "kokoro.onnx"))
    vocabulary = {phoneme: number for number, phoneme in enumerate(PHONEMES, 1)}
    (folder / "vocab.json").write_text(json.dumps({"vocab": vocabulary}))
    styles: dict[str, Any] = {name: chance.normal(size=(LIMIT, 1, 256)).astype(np.float32) for name in NAMES}
    np.savez(folder / "voices.npz", **styles)
    letters = {letter: f"{letter.lower()}\u02c8i" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
    (folder / "us_gold.json").write_text(json.dumps({**letters, **WORDS}))
    (folder / "us_silver.json").write_text("{}")
    return folder


def _network(ids: int, chance: np.random.Generator) -> onnx.ModelProto:
    """audio = the noise of each token, one after the other, of which `speed` keeps the beginning."""
    noise = chance.uniform(-0.4, 0.4, size=(ids, STEP)).astype(np.float32)
    constants = {"noise": noise, "flat": np.array([-1]), "zero": np.array([0])}
    node = helper.make_node
    nodes = [
        node("Gather", ["noise", "tokens"], ["sounds"]),
        node("Reshape", ["sounds", "flat"], ["whole"]),
        node("Shape", ["whole"], ["length"]),
        node("Cast", ["length"], ["long"], to=TensorProto.FLOAT),
        node("Div", ["long", "speed"], ["shortened"]),
        node("Cast", ["shortened"], ["end"], to=TensorProto.INT64),
        node("Slice", ["whole", "zero", "end"], ["cut"]),
        node("ReduceSum", ["style"], ["sum"], keepdims=0),
        node("Mul", ["sum", "nothing"], ["silent"]),
        node("Add", ["cut", "silent"], ["audio"]),
    ]
    constants["nothing"] = np.array(0.0, dtype=np.float32)
    kind = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "tiny-voice",
        [
            kind("tokens", TensorProto.INT64, [1, "n"]),
            kind("style", TensorProto.FLOAT, [1, 256]),
            kind("speed", TensorProto.FLOAT, [1]),
        ],
        [kind("audio", TensorProto.FLOAT, ["samples"])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def voice_files(folder: Path) -> ModelFiles:
    """The folder as the store would resolve it."""
    paths = {path.name: path for path in sorted(folder.iterdir())}
    return ModelFiles(name="tiny-voice", digest="sha256:" + "3" * 64, format="onnx", paths=paths)


def add_to_catalog(folder: Path, home: Path, name: str) -> None:
    """Have `edgewise models pull NAME` find the voice of `folder`."""
    lines = [
        "[[model]]",
        f'name = "{name}"',
        "[model.info]",
        'role = "text-to-speech"',
        'format = "onnx"',
        'licence_model = "none"',
    ]
    lines.append("memory_bytes = 200_000_000")
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        lines += [
            "[[model.files]]",
            f'name = "{path.name}"',
            f'sha256 = "{hashlib.sha256(content).hexdigest()}"',
            f"size = {len(content)}",
            f'sources = [{{url = "{path.absolute().as_uri()}"}}]',
        ]
    (home / "catalog.d").mkdir(parents=True, exist_ok=True)
    (home / "catalog.d" / f"{name}.toml").write_text("\n".join(lines))
