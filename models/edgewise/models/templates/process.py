"""The parent's side of the render process: started when first needed, replaced when a template was stopped."""

from __future__ import annotations

import json
from typing import Any

from edgewise.core.confined import ChildEndedError, ConfinedChild
from edgewise.core.errors import TemplateFailed
from edgewise.models.templates.limits import CPU_SECONDS, WALL_SECONDS

_WORKER = "edgewise.models.templates.worker"
"""Named, not imported: importing it would load Jinja into this process."""


class RenderProcess:
    """One render process. `ask` may be called from any thread."""

    def __init__(self) -> None:
        self._child = ConfinedChild(_WORKER, wall_s=WALL_SECONDS)

    def __repr__(self) -> str:
        return f"RenderProcess(pid={self.pid})"

    @property
    def pid(self) -> int | None:
        """Process id while one is running or has just ended."""
        return self._child.pid

    def start(self) -> None:
        """Start the process if none runs, without waiting for it to be ready."""
        self._child.start()

    def close(self) -> None:
        """End the process. A later render starts a new one."""
        self._child.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            TemplateFailed: The process was stopped by its limits, or ended twice for another reason.
        """
        try:  # ASCII: half surrogate pairs survive as escapes
            answer: dict[str, Any] = json.loads(self._child.ask(json.dumps(request).encode()))
        except ChildEndedError as error:
            raise TemplateFailed(_why(error)) from error
        return answer


def _why(error: ChildEndedError) -> str:
    if error.out_of_time:
        return f"The model's chat template was stopped after {CPU_SECONDS:g} s of CPU time: it may loop for ever."
    return f"The model's chat template could not be rendered: its process ended with status {error.status}."
