"""Quantizes a model of the store into a file: text to tokens, tokens through the model. Imports torch."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from edgewise.engine.calibration import Comparison, compare, quantize_file
from edgewise.engine.gate import GateProgress
from edgewise.models.files import ModelFiles
from edgewise.models.quantize.file import Part, QuantizedTo, quantized_bytes
from edgewise.models.store import Store
from edgewise.models.tokenizer import load_tokenizer
from edgewise.models.weights.gguf import header_of
from edgewise.pipeline.calibration_text import calibration_text
from edgewise.pipeline.gate_text import built_in_text


def quantized_size(store: Store, name: str, to: QuantizedTo, wide: Collection[Part]) -> int:
    """Bytes that `quantize_model` will write, of which nothing but the file's header is left out.

    Raises:
        ModelNotFound, BadModelFile, UnsupportedModel: As their names say.
    """
    return quantized_bytes(store.resolve(name), to, wide)


def quantize_model(
    store: Store,
    name: str,
    out: Path,
    to: QuantizedTo,
    wide: Collection[Part],
    text: str | None,
    tokens: int,
    progress: GateProgress | None,
) -> float:
    """Write `out`; returns the bits of a weight.

    Args:
        text: What to calibrate on; None takes `calibration_text`.
        tokens: How many tokens of it.

    Raises:
        InvalidRequest: The text is too short, or there is none.
        ModelNotFound, BadModelFile, UnsupportedModel, OutOfMemory: As their names say.
    """
    files = store.resolve(name)
    read = _encode(files, calibration_text() if text is None else text, tokens)
    return quantize_file(files, out, to, read, wide=wide, progress=progress or _tell_nobody)


def compare_models(
    store: Store, original: str, made: str, to: QuantizedTo, tokens: int, progress: GateProgress | None
) -> Comparison:
    """Measure two models of the store on the gate's text (`engine.calibration.compare`)."""
    files = store.resolve(original)
    read = _encode(files, built_in_text(), tokens)
    return compare(files, store.resolve(made), to, read, progress=progress or _tell_nobody)


def _encode(files: ModelFiles, text: str, tokens: int) -> list[int]:
    tokenizer = load_tokenizer(files, header_of(files) if files.format == "gguf" else None)
    return list(tokenizer.encode(text, parse_special=False)[:tokens])


def _tell_nobody(_what: str, _share: float) -> None:
    """For a caller who shows no progress."""
