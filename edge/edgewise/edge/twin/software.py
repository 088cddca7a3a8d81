"""`software`: shown, and never changed: there is no signed metadata yet by which a release could be believed."""

from __future__ import annotations

from edgewise.edge.agent.commands.operation import Unsigned
from edgewise.edge.agent.ops.software import REASON
from edgewise.edge.twin.shadow import Applied, Document, Report, Shown
from edgewise.wire.fleet import Shadow


class SoftwarePart:
    """Args:
    version: Of the software that runs.
    """

    name: Shadow = "software"

    def __init__(self, version: str) -> None:
        self._version = version

    def check(self, document: Document) -> None:
        """The version that runs may be desired; any other is refused as unsigned."""
        if document.get("version") != self._version:
            raise Unsigned(f"unsigned: {REASON}")

    async def apply(self, gen: int, document: Document, report: Report) -> Applied:
        del gen, report
        self.check(document)
        return Applied()

    async def show(self) -> Shown:
        return Shown({"version": self._version})
