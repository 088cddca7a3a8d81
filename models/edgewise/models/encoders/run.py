"""One encoder in ONNX Runtime: rows of token ids in, unit vectors out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from edgewise.models.encoders.graph import IDS, MASK, OUT
from edgewise.models.encoders.weights import Array

RUNTIME: Final = f"onnxruntime-{ort.__version__}"
_CPU: Final = "CPUExecutionProvider"
_ERRORS: Final = 3


class Session:
    """A loaded graph. `run` may be called from several threads.

    Args:
        model: The graph's bytes, or the file that holds them.
        threads: That compute one call together. They sleep between calls: other models want the processor.
    """

    def __init__(self, model: bytes | Path, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # A provider that is asked for and not there is an error, never another one in its place.
        self._session = ort.InferenceSession(
            model if isinstance(model, bytes) else str(model), options, providers=[_CPU]
        )

    def run(self, rows: Sequence[Sequence[int]]) -> Array:
        """Vectors [rows, width], float32, of length one.

        Args:
            rows: Token ids; shorter rows are padded and masked.
        """
        (vectors,) = self._session.run([OUT], feed(rows))
        return np.asarray(vectors, np.float32)

    def outputs(self, rows: Sequence[Sequence[int]], names: Sequence[str]) -> list[Array]:
        """Other outputs of the graph by name, rows of real tokens only: [tokens, width]."""
        inputs = feed(rows)
        real = inputs[MASK].astype(bool)
        return [np.asarray(value, np.float32)[real] for value in self._session.run(list(names), inputs)]


def feed(rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The graph's inputs [rows, longest row]."""
    longest = max(map(len, rows))
    ids, mask = (np.zeros((len(rows), longest), np.int64) for _ in range(2))
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
        mask[at, : len(row)] = 1
    return {IDS: ids, MASK: mask}
