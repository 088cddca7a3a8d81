"""ONNX Runtime on the CPU, as every model here opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import onnxruntime

RUNTIME: Final = f"onnxruntime-{onnxruntime.__version__}"
_ERRORS: Final = 3


def options_for(threads: int) -> Any:
    """`SessionOptions` for nodes one after the other, each computed by so many threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return options


def open_session(model: bytes | Path, options: Any) -> Any:
    """An `InferenceSession` of a graph, or of the file that holds it. A provider that is asked for and not there is an error,
    never another one in its place."""
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def open_quiet(model: bytes | Path, threads: int) -> Any:
    """As `open_session`, for encoders: threads sleep between calls, since other models want the processor."""
    options = options_for(threads)
    options.log_severity_level = _ERRORS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return open_session(model, options)
