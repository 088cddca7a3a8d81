"""Loading takes little more memory than the weights need: floats, GGUF blocks, weights rounded while they are loaded."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.models.tiny import make_tiny_model
from edgewise.models.weights.write import StoredTensor, write_gguf
from tests.accept.line import Line, Verdict, main, progress

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1.15
HIDDEN, FFN = 1024, 4096

# Stored as, kernels, quantize, dtype.
WAYS: Mapping[str, tuple[str, str, str, str]] = {
    "float32 file, reference": ("F32", "reference", "none", "float32"),
    "bfloat16 file, reference": ("BF16", "reference", "none", "bfloat16"),
    "float32 file, native floats": ("F32", "native", "none", "float32"),
    "bfloat16 file, native floats": ("BF16", "native", "none", "auto"),
    "bfloat16 file, native int8": ("BF16", "native", "int8", "auto"),
    "bfloat16 file, native int4": ("BF16", "native", "int4", "auto"),
    "GGUF Q8_0, native": ("Q8_0", "native", "auto", "auto"),
    "GGUF Q4_0, native": ("Q4_0", "native", "auto", "auto"),
}
_FEW = ("float32 file, reference", "bfloat16 file, native int8", "GGUF Q4_0, native")


def model(folder: Path, stored: str, layers: int) -> Path:
    """A random llama, 14.9 million weights a layer; few heads of keys, so that 8 MiB hold a context of all layers."""
    shape = {"hidden": HIDDEN, "intermediate": FFN, "heads": 16, "kv_heads": 2, "layers": layers}
    if stored in ("F32", "BF16"):
        return make_tiny_model(folder, dtype=stored, **shape)
    source = make_tiny_model(folder / "source", format="gguf", dtype="F16", **shape) / "tiny.gguf"
    import gguf
    from gguf.quants import quantize

    reader = gguf.GGUFReader(source)
    tensors = []
    for tensor in reader.tensors:
        kind = stored if len(tensor.shape) > 1 else "F32"
        values = np.asarray(tensor.data).astype(np.float32)
        data = quantize(values, gguf.GGMLQuantizationType[kind]).tobytes() if kind != "F32" else values.tobytes()
        tensors.append(StoredTensor(tensor.name, tuple(map(int, reversed(tensor.shape))), kind, data))
    metadata = {name: one.contents() for name, one in reader.fields.items() if not name.startswith("GGUF.")}
    (folder / "model").mkdir()
    write_gguf(folder / "model" / "tiny.gguf", metadata, tensors)
    return folder / "model"


def loaded(way: str, layers: int) -> dict[str, Any]:
    """What the child says of one way to load."""
    stored, *how = WAYS[way]
    with tempfile.TemporaryDirectory(prefix="edgewise-") as name:
        folder = model(Path(name) / "m", stored, layers)
        done = subprocess.run(
            [sys.executable, "-m", "tests.accept.loading_child", str(folder), *how],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(f"{way}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    found["ratio"] = round((found["peak"] - found["cache"]) / found["weights"], 3)
    return found


def measure(count: int) -> Verdict:
    """`count`: layers of the model; with one only some of the ways are gone."""
    found = {}
    for way in WAYS if count > 1 else _FEW:
        found[way] = loaded(way, count)
        mib = {name: round(found[way][name] / 2**20) for name in ("weights", "peak", "after")}
        progress(f"{way}: {found[way]['ratio']} ({mib} MiB, {found[way]['numeric_class']})")
    worst = max(found, key=lambda way: float(found[way]["ratio"]))
    figure = f"at most {found[worst]['ratio']} x the weights ({worst})"
    answered = all(one["tokens"] == 2 for one in found.values())
    passed = answered and found[worst]["ratio"] <= LIMIT
    return Verdict(figure=figure, passed=passed, correct=answered, details=found)


LINE = Line(
    number=5,
    title="Peak memory while loading, above the process before it and without the KV cache, to the weights",
    bar=f"<= {LIMIT} for float32, bfloat16, int8 and int4, from safetensors and GGUF",
    count=24,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fast_5")
