"""Quantizes a model into a file: reads a text with it to see what its matrices are multiplied with, then rounds them by that."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgewise.core.errors import InvalidRequest, OutOfMemory
from edgewise.core.sizes import mib
from edgewise.engine.gate import GateProgress, require_memory
from edgewise.engine.ledger import available_memory
from edgewise.engine.quality import ROWS, Divergence, Reader, RoundedReader, divergence, read
from edgewise.models.decoder.memory import kv_bytes_per_token, weight_bytes, workspace_bytes
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.rounded import RoundedFormat
from edgewise.models.files import ModelFiles
from edgewise.models.quantize.energies import InputMeter, LayerEnergies
from edgewise.models.quantize.file import Part, QuantizedTo, require_quantizable, write_quantized

STRETCH = 512
"""Tokens of context in which a text is read."""


def quantize_file(
    files: ModelFiles,
    out: Path,
    to: QuantizedTo,
    tokens: Sequence[int],
    *,
    wide: Collection[Part] = (),
    progress: GateProgress,
) -> float:
    """Write `out`, a GGUF file; returns the bits of a weight. On the CPU, in float32.

    Args:
        tokens: Of the text to calibrate on, at least 128; a rest that does not fill as many is left out.
        wide: Matrices that have 8 bits with "int4" too.

    Raises:
        UnsupportedModel: The model cannot be quantized, and why.
        OutOfMemory: It does not fit in float32; nothing has been loaded then.
        InvalidRequest: The text is too short.
    """
    config = require_quantizable(files, to)
    if min(len(tokens), config.max_position) < ROWS:
        shorter = "The text has" if len(tokens) < ROWS else "The model's context has"
        raise InvalidRequest(f"{shorter} fewer than the {ROWS} tokens that are needed.", param="text")
    tokens = tokens[: len(tokens) // ROWS * ROWS]  # no rows of padding in the means
    stretch = min(STRETCH, config.max_position) // ROWS * ROWS
    need = weight_bytes(config, "float32") + workspace_bytes(config, ROWS, 1)
    need += stretch * kv_bytes_per_token(config, "float32")
    have = available_memory()
    if need > have:
        raise OutOfMemory(
            f"{files.name} is read in float32 to be quantized, which needs {mib(need)}; {mib(have)} are available. Quantize it "
            "on a larger machine and import the file here."
        )
    energies = _measure(files, tokens, stretch, progress)
    return write_quantized(
        files, out, to, energies, wide=wide, progress=lambda done: progress("rounding", 0.5 + done / 2)
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a made file and llama.cpp's rounding of the same weights diverge from the original in float32, with the activations
    of their products in 8 bits and pages in float32."""

    made: Divergence
    peer: Divergence


def compare(
    original: ModelFiles, made: ModelFiles, to: QuantizedTo, tokens: Sequence[int], *, progress: GateProgress
) -> Comparison:
    """Read a text, another than the one calibrated on, with three models one after the other.

    Raises:
        OutOfMemory: Two of them do not fit in float32.
    """
    require_memory(original, STRETCH)
    truth = Reader(original)
    context = min(STRETCH, truth.config.max_position)

    def against(reader: Reader, what: str, begun: float) -> Divergence:
        runners = truth.over("float32", context), reader.over("float32", context)
        tell = partial(_tell, progress, what, begun)
        return divergence(*runners, tokens, context=context, progress=tell)

    mine = against(RoundedReader(made, to), f"comparing {to}", 0.0)
    theirs: RoundedFormat = "Q8_0" if to == "int8" else "Q4_0"
    return Comparison(mine, against(RoundedReader(original, theirs), f"comparing llama.cpp's {theirs}", 0.5))


def _tell(progress: GateProgress, what: str, begun: float, done: float) -> None:
    progress(what, begun + done / 2)


def _measure(files: ModelFiles, tokens: Sequence[int], stretch: int, progress: GateProgress) -> list[LayerEnergies]:
    """The model is gone when this returns."""
    reader = Reader(files)
    decoder = reader.network
    assert isinstance(decoder, Decoder)  # `require_quantizable` has seen to it
    meter, runner = InputMeter(decoder.parameters.layers), reader.over("float32", stretch)
    for first in range(0, len(tokens), stretch):
        with meter:
            read(runner, tokens[first : first + stretch])
        progress("reading", min(1.0, (first + stretch) / len(tokens)) / 2)
    return meter.energies()
