"""Which files make up a model on disk. The store resolves a name to this; readers and loaders take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ModelFormat = Literal["gguf", "safetensors", "onnx", "torch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model's files.

    Attributes:
        name: What the user calls it.
        digest: "sha256:<hex>" over the manifest (names and digests of all files); identifies the weights in every cache key.
        format: "gguf" (one file; header holds configuration, tokenizer, template), "safetensors" (a Hugging Face folder), "onnx"
            (graphs with their weights) or "torch" (a checkpoint of tensors).
        paths: Logical file name (e.g. "config.json", "model.safetensors", "x.gguf") -> path on disk. The path's own name may
            be a digest.
    """

    name: str
    digest: str
    format: ModelFormat
    paths: Mapping[str, Path]
