"""`edgewise serve` over the double of `tests.bench.overhead_double`; stands before its command line and takes its place:

    python -m tests.bench.overhead_service edgewise serve --port 8400 --model tiny

With a file's name in the environment variable `OVERHEAD_REPORT` it writes there, when it ends, what the parts of its event loop
have cost in nanoseconds; without, nothing is wrapped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from edgewise.api.writers import ChoicesWriter
from edgewise.cli.main import main as command_line
from edgewise.engine.channel import Channel
from edgewise.engine.client import EngineClient
from edgewise.engine.config import EngineConfig
from edgewise.engine.events import EngineEvent
from edgewise.pipeline.text import TextAssembler
from edgewise.serving import service
from tests.bench.overhead_parts import Parts

FACTORY = f"{Path(__file__).with_name('overhead_double.py')}:build"
REPORT = "OVERHEAD_REPORT"


def make_engine(config: EngineConfig, on_event: Callable[[EngineEvent], None]) -> EngineClient:
    """`serving.engines.make_engine` for the double."""
    return EngineClient(config, factory=FACTORY, on_event=on_event)


def main() -> None:
    arguments, report = sys.argv[sys.argv.index("serve") :], os.environ.get(REPORT)
    vars(service)["make_engine"] = make_engine
    parts = Parts()
    if report is not None:
        parts.wrap(Channel, "_read", "frames, decoding")
        parts.wrap(EngineClient, "engine_message", "book, mailboxes")
        parts.wrap(TextAssembler, "feed", "text")
        parts.wrap(ChoicesWriter, "piece", "events", drain=True)
    try:
        command_line(arguments)
    finally:
        if report is not None:
            Path(report).write_text(json.dumps(parts.spent))


if __name__ == "__main__":
    main()
