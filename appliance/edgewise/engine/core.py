"""What runs inside the engine process: the step loop's protocol and the factory that builds it.

The process around it (`engine.worker`) knows nothing of models or tensors; the core knows nothing of sockets. All methods are
called from one thread.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast, runtime_checkable

from edgewise.core.errors import ConfigError, EngineFault
from edgewise.engine.api import CacheTier, EngineInfo, EngineStats, MemoryReport
from edgewise.engine.encoders.request import EncodeChunk, EncoderInfo
from edgewise.engine.messages import PageOrder, PageReply
from edgewise.engine.notices import Notify
from edgewise.engine.pictures.request import DiffuseChunk, PictureInfo
from edgewise.engine.request import TokenChunk

DEFAULT_FACTORY = "edgewise.engine.omni.build:build"

ProgressSink = Callable[[str, float], None]
"""Called while the core is built with the stage's name and the fraction done, 0 to 1."""


class CoreLost(EngineFault):
    """The core can compute nothing any more: the fault of no request, so its process ends, whichever call raises it."""


class EngineCore(Protocol):
    """One model and the requests in work: of tokens (`engine.engine`), of pictures (`engine.pictures.engine`) or of
    inputs that are read whole (`engine.encoders.engine`).

    Requests and chunks are those of the core's kind; what sends them knows which.
    """

    @property
    def info(self) -> EngineInfo | PictureInfo | EncoderInfo: ...

    def add(self, request: Any) -> None:
        """Queue a request. The `output` of a `GenerateRequest` is continued, not generated again, and counts as completion in
        the statistics.

        Raises:
            QueueFull, InvalidRequest, ContextLengthExceeded, OutOfMemory: The request is refused; nothing is kept of it.
            CoreLost: The process is to end, as after any exception of `step`.
        """

    def cancel(self, request_id: str) -> None:
        """End a request; the next step returns its final chunk (finish "cancelled"). Unknown ids are ignored."""

    def step(self) -> Sequence[TokenChunk | DiffuseChunk | EncodeChunk]:
        """Do one iteration. An exception here ends the process; the supervisor restarts it and resumes every request."""

    @property
    def has_work(self) -> bool:
        """True while a call of `step` would advance a request or return a chunk."""

    def listen(self, listener: Notify) -> None:
        """Have notices for operators told to `listener`, from any thread."""

    def clear_cache(self, tier: CacheTier | None) -> dict[str, int]:
        """Forget cached pages of one tier, or of all; returns the number of pages by tier. Pages in use stay."""

    def stats(self) -> EngineStats: ...

    def memory(self) -> MemoryReport: ...

    def close(self) -> None: ...


@runtime_checkable
class HoldsPages(Protocol):
    """A core whose KV pages can be handed over to another appliance, and taken from one."""

    def pages(self, order: PageOrder) -> PageReply:
        """Carry an order out at once; what it moves is bounded."""


@runtime_checkable
class Guarded(Protocol):
    """A core that depends on other processes."""

    def guard(self, lost: Callable[[str], None]) -> None:
        """Have `lost` called with the reason, by any thread, when one of them has ended and no call may raise `CoreLost`."""


@runtime_checkable
class Limited(Protocol):
    """A core that can be told to do less, so that its device stays cool."""

    def limit(self, max_running: int, pace: float) -> None:
        """See `engine.messages.Limit`. What has begun goes on; nothing is lost."""


EngineFactory = Callable[[Any, ProgressSink], EngineCore]
"""Takes the configuration of its kind, `engine.messages.AnyConfig`."""


def load_factory(spec: str) -> EngineFactory:
    """Import a factory named "package.module:function" or "/path/to/file.py:function".

    Raises:
        ConfigError: The name is malformed, or there is no such module or function.
    """
    where, separator, name = spec.rpartition(":")
    if not separator or not name.isidentifier():
        raise ConfigError(f"Engine factory '{spec}' is not of the form 'module:function'.", param="factory")
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    factory = getattr(module, name, None)
    if not callable(factory):
        raise ConfigError(f"Engine factory '{spec}': there is no function '{name}' in '{where}'.", param="factory")
    return cast(EngineFactory, factory)


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"Engine factory: cannot import '{name}': {error}.", param="factory") from error


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"engine_factory_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"Engine factory: there is no Python file '{path}'.", param="factory")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
