"""The render process: `python -m edgewise.models.templates.worker`.

A chat template is a program that came with a model. Jinja's sandbox keeps it from the system but not from looping for ever or
building a string of gigabytes, inside one call that nothing in the same process could interrupt. So it runs here, under limits
of the kernel: address space (a MemoryError, reported) and CPU time per render (SIGPROF ends the process, the parent sees that).

Frames on standard input and output: length (u32, little-endian), then JSON. A request holds "source" and "variables"; the
answer "text", or "error" with the kind of fault. The process ends with its input, so it cannot outlive its parent.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import Any, BinaryIO

from jinja2 import Template, TemplateError

from edgewise.models.templates.environment import TemplateRefusedError, chat_environment
from edgewise.models.templates.limits import ADDRESS_SPACE_BYTES, CPU_SECONDS, FRAME, MAX_OUTPUT_CHARS

# What a template's own mistakes raise.
_FAULTS = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = ADDRESS_SPACE_BYTES if hard == resource.RLIM_INFINITY else min(ADDRESS_SPACE_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    renderer = Renderer()
    while (request := read_frame(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        answer = renderer.answer(request)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        write_frame(sys.stdout.buffer, answer)


class Renderer:
    """Compiles a template once and renders it as often as asked."""

    def __init__(self) -> None:
        self._environment = chat_environment()
        self._compiled: dict[str, Template] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, str]:
        """The answer's JSON object for one request."""
        try:
            text = self._template(request["source"]).render(**request["variables"])
        except TemplateRefusedError as error:
            return {"error": "refused", "message": error.message or "no reason given"}
        except MemoryError:
            return {"error": "memory", "message": f"needs more than {ADDRESS_SPACE_BYTES >> 20} MiB"}
        except (*_FAULTS, RecursionError) as error:
            return {"error": "failed", "message": f"{type(error).__name__}: {error}"}
        if len(text) > MAX_OUTPUT_CHARS:
            return {"error": "failed", "message": f"wrote {len(text)} characters; the limit is {MAX_OUTPUT_CHARS}"}
        return {"text": text}

    def _template(self, source: str) -> Template:
        template = self._compiled.get(source)
        if template is None:
            template = self._compiled[source] = self._environment.from_string(source)
        return template


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next frame; None when the stream ends, also in the middle of a frame."""
    head = stream.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    body = stream.read(FRAME.unpack(head)[0])
    if len(body) < FRAME.unpack(head)[0]:
        return None
    frame: dict[str, Any] = json.loads(body)
    return frame


def write_frame(stream: BinaryIO, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()  # ASCII: half surrogate pairs survive as escapes
    stream.write(FRAME.pack(len(body)) + body)
    stream.flush()


if __name__ == "__main__":
    main()
