"""The render process: `python -m edgewise.models.templates.worker`.

A chat template is a program that came with a model. Jinja's sandbox keeps it from the system but not from looping for ever or
building a string of gigabytes, inside one call that nothing in the same process could interrupt. So it runs here, under limits
of the kernel: address space (a MemoryError, reported) and CPU time per render (SIGPROF ends the process, the parent sees that).

Frames (`core.confined`) hold JSON. A request has "source" and "variables"; the answer "text", or "error" with the kind of fault.
"""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Template, TemplateError

from edgewise.core.confined import serve
from edgewise.models.templates.environment import TemplateRefusedError, chat_environment
from edgewise.models.templates.limits import ADDRESS_SPACE_BYTES, CPU_SECONDS, MAX_OUTPUT_CHARS

# What a template's own mistakes raise.
_FAULTS = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def main() -> None:
    """Answer requests until standard input ends."""
    renderer = Renderer()

    def answer(body: bytes) -> bytes:  # ASCII: half surrogate pairs survive as escapes
        return json.dumps(renderer.answer(json.loads(body))).encode()

    serve(answer, address_space=ADDRESS_SPACE_BYTES, cpu_s=CPU_SECONDS)


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


if __name__ == "__main__":
    main()
