"""A process of its own that climbs an encoder's ladder; its order comes as a line of JSON on standard input.

It runs at the lowest priority and within a bound of memory, and whatever happens to it, the encoder goes on serving as it is.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from edgewise.core.errors import BadModelFile, EdgewiseError
from edgewise.models.encoders.ladder import MANY, Ladder, Told
from edgewise.models.encoders.record import GATE, LadderRecord, write_winner
from edgewise.models.encoders.shape import read_shape
from edgewise.models.encoders.text import load_tokenizer
from edgewise.models.encoders.weights import read_weights
from edgewise.models.files import ModelFiles
from edgewise.models.manifest import TIME_FORMAT
from edgewise.models.onnx_session import RUNTIME

SENTENCES: Final = 64
"""For the calibration, and as many others for the gate."""
_NICEST: Final = 19
_END: Final = re.compile(r"(?<=[.!?])\s+")
_SHORTEST, _LONGEST = 24, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Attributes:
    files: The encoder.
    text: File of prose, from which the sentences are taken.
    folder: Where the place's record and the winner go.
    device: Name of the processor's family, for the record.
    threads: As the encoder will run.
    memory_bytes: Address space that may be used beyond what is mapped at the start; None for no bound.
    """

    files: ModelFiles
    text: Path
    folder: Path
    device: str
    threads: int
    memory_bytes: int | None = None

    def to_json(self) -> str:
        files = {
            "name": self.files.name,
            "digest": self.files.digest,
            "format": self.files.format,
            "paths": {name: str(path) for name, path in self.files.paths.items()},
        }
        rest = {"device": self.device, "threads": self.threads, "memory_bytes": self.memory_bytes}
        return json.dumps({"files": files, "text": str(self.text), "folder": str(self.folder), **rest})


def read_order(raw: Mapping[str, Any]) -> Order:
    """The order that `Order.to_json` wrote."""
    files = raw["files"]
    return Order(
        files=ModelFiles(**{**files, "paths": {name: Path(path) for name, path in files["paths"].items()}}),
        text=Path(raw["text"]),
        folder=Path(raw["folder"]),
        device=raw["device"],
        threads=raw["threads"],
        memory_bytes=raw["memory_bytes"],
    )


def sentences(text: str) -> list[str]:
    """Sentences of prose, of ordinary length, in order, each once."""
    found = (it.strip() for paragraph in text.split("\n\n") for it in _END.split(" ".join(paragraph.split())))
    return list(dict.fromkeys(it for it in found if _SHORTEST <= len(it) <= _LONGEST))


def climb(order: Order, told: Told) -> LadderRecord:
    """Build, measure, choose and keep; `told` hears of each stage and the share done.

    Raises:
        UnsupportedModel, BadModelFile: The encoder cannot be read, or the text has too few sentences.
        StorageError: The disk refuses.
    """
    began = time.monotonic()
    shape = read_shape(order.files)
    tokenizer = load_tokenizer(order.files)
    found = sentences(order.text.read_text(encoding="utf-8"))
    if len(found) < 2 * MANY:
        raise BadModelFile(f"{order.text.name} has {len(found)} sentences; {2 * MANY} are needed.")
    rows = [tokenizer.shorten(ids, shape.max_tokens) for ids in tokenizer.encode(found[: 2 * SENTENCES])]
    ladder = Ladder(shape, read_weights(order.files, shape), rows[0::2], rows[1::2], order.threads)
    best, candidates = ladder.climb(told)
    plain = not best.forms
    record = LadderRecord(
        model=order.files.name,
        digest=order.files.digest,
        runtime=RUNTIME,
        device=order.device,
        threads=order.threads,
        measured_at=datetime.now(timezone.utc).strftime(TIME_FORMAT),
        took_s=round(time.monotonic() - began, 2),
        gate=GATE,
        sentences=len(rows[1::2]),
        many=MANY,
        file="" if plain else f"{best.name}.onnx",
        candidates=tuple(candidates),
    )
    write_winner(order.folder, record, None if plain else best.model)
    return record


def _tell(stage: str, fraction: float) -> None:
    print(json.dumps({"stage": stage, "fraction": fraction}), flush=True)


def _end_with_parent() -> None:
    """The parent holds the other end of standard input and writes no more: the end of file is its own end."""
    sys.stdin.read()
    os._exit(1)


def main() -> int:
    order = read_order(json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    os.nice(_NICEST)
    if order.memory_bytes is not None:
        mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        bound = mapped + order.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    try:
        climb(order, _tell)
    except EdgewiseError as error:
        print(json.dumps({"error": error.message}), flush=True)
        return 1
    except MemoryError:
        print(json.dumps({"error": f"it needs more than the {order.memory_bytes} bytes that it may have"}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
