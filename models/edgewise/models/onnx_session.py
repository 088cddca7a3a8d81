"""ONNX Runtime as every model here opens it: on the CPU, or on a card by a provider that is really there."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import onnxruntime

from edgewise.core.errors import EngineUnavailable

RUNTIME: Final = f"onnxruntime-{onnxruntime.__version__}"
CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"
_LIBRARIES: Final = {
    CUDA: "libonnxruntime_providers_cuda.so",
    TENSORRT: "libonnxruntime_providers_tensorrt.so",
}
_ERRORS: Final = 3
_FATAL: Final = 4


def options_for(threads: int) -> Any:
    """`SessionOptions` for nodes one after the other, each computed by so many threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return options


def open_session(model: bytes | Path, options: Any) -> Any:
    """An `InferenceSession` on the CPU of a graph, or of the file that holds it."""
    return onnxruntime.InferenceSession(_source(model), options, providers=[CPU])


def open_quiet(model: bytes | Path, threads: int, given: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """As `open_session`, for encoders: threads sleep between calls, since other models want the processor.

    Args:
        given: Arrays of constants that the graph names and does not hold, by their names; they are not copied.
    """
    options = options_for(threads)
    if given:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(it) for it in given.values()]
        options.add_external_initializers(list(given), values)
    options.log_severity_level = _ERRORS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return open_session(model, options)


def open_on_card(model: bytes | Path, providers: Mapping[str, Mapping[str, str]], options: Any) -> Any:
    """An `InferenceSession` all of whose nodes are on a card.

    ONNX Runtime alone would print a line and compute on the CPU instead: for a provider that it was built without, for one whose
    libraries are missing, and for single nodes. Each of these is refused here.

    Args:
        providers: Name and options of each, the preferred first.

    Raises:
        EngineUnavailable: A provider is not there; it and the missing library are named.
    """
    there = onnxruntime.get_available_providers()
    for name in providers:
        if name not in there:
            raise EngineUnavailable(
                f"{name} is not in this ONNX Runtime ({onnxruntime.__version__}, with {', '.join(there)}): install "
                "onnxruntime-gpu in its place."
            )
    options.log_severity_level = _FATAL
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    asked = [(name, dict(some)) for name, some in providers.items()]
    try:
        session = onnxruntime.InferenceSession(_source(model), options, providers=asked, enable_fallback=0)
    except Exception as error:  # its errors have no common class but this
        raise EngineUnavailable(_missing_library(providers) or f"{asked[0][0]}: {_first_line(error)}") from error
    session.disable_fallback()
    missing = sorted(providers.keys() - set(session.get_providers()))
    if missing:
        raise EngineUnavailable(_missing_library(missing) or f"{missing[0]} was asked for and did not start.")
    return session


def _missing_library(names: Iterable[str]) -> str:
    """What the system says when it loads the providers' libraries; "" if it can. ONNX Runtime keeps this to itself."""
    folder = Path(onnxruntime.__file__).parent / "capi"
    for name in names:
        try:
            ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(folder / _LIBRARIES[name]))
        except OSError as error:
            return f"{name} cannot be loaded: {error}."
    return ""


def _source(model: bytes | Path) -> bytes | str:
    return model if isinstance(model, bytes) else str(model)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
