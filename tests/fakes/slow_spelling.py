"""A named double of a voice's engine: one part for each letter of its input, each of which takes a moment. It kills its own
process once, before the part that the option "die_at" names, if the file "marker" does not exist."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewise.engine.core import ProgressSink
from edgewise.engine.encoders.config import EncoderConfig
from edgewise.engine.encoders.engine import EncoderCore, Result
from edgewise.engine.encoders.request import EncoderInfo
from edgewise.engine.ledger import Ledger
from edgewise.models.parts import Parts

PART_S = 0.02


class Spelling:
    """Implements `engine.encoders.engine.Encoder`."""

    def check(self, content: bytes, options: Mapping[str, Any]) -> Parts:
        return Parts([(letter, at, options) for at, letter in enumerate(content.decode())])

    def compute(self, inputs: Sequence[tuple[str, int, Mapping[str, Any]]]) -> list[Result]:
        ((letter, at, options),) = inputs
        time.sleep(PART_S)
        if at == options.get("die_at") and not Path(options["marker"]).exists():
            Path(options["marker"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [({"at": at}, letter.encode())]


def build(config: EncoderConfig, progress: ProgressSink) -> EncoderCore:
    progress("weights", 0.0)
    info = EncoderInfo(
        model=config.model.name,
        digest=config.model.digest,
        role=config.role,
        numeric_class="double",
        device="cpu",
        pid=os.getpid(),
        load_s=0.0,
    )
    ledger = Ledger(1 << 30, lambda: 1 << 30)
    return EncoderCore(info, Spelling(), ledger, max_batch=1, max_waiting=config.max_waiting)
