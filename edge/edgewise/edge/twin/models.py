"""`models`: which models the device has and which are loaded. What is right already is neither fetched nor loaded again."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgewise.core.errors import InvalidRequest
from edgewise.edge.twin.installer import Installer, load
from edgewise.edge.twin.shadow import Applied, Document, Report, Shown
from edgewise.models.manifest import Manifest, Role
from edgewise.models.names import check_name
from edgewise.pipeline.model import Models
from edgewise.wire.fleet import Shadow


class WantedModel(BaseModel):
    """Attributes:
    source: `hf:OWNER/NAME` or `oci:HOST/REPO`; None: the catalog has it under its name.
    digest: It is this one; None takes what its source has.
    load: Load it at once, and after each start.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = Field(min_length=1, max_length=200)
    source: str | None = Field(default=None, min_length=1, max_length=500)
    digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    role: Role = "llm"
    load: bool = False


class WantedModels(BaseModel):
    """The document. `remove_others`: whatever else is installed goes, unless it is pinned."""

    model_config = ConfigDict(frozen=True, extra="allow")

    models: tuple[WantedModel, ...] = Field(default=(), max_length=100)
    remove_others: bool = False


class ModelsPart:
    """First all models are brought and loaded, then others go: a document that cannot be fulfilled takes nothing away."""

    name: Shadow = "models"

    def __init__(self, models: Models, installer: Installer) -> None:
        self._models = models
        self._installer = installer

    def check(self, document: Document) -> None:
        wanted = _read(document)
        names = [one.name for one in wanted.models]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidRequest(f"models: `{twice}` is named twice.", param="models")
        for name in names:
            check_name(name)

    async def apply(self, gen: int, document: Document, report: Report) -> Applied:
        del gen
        wanted = _read(document)
        for one in wanted.models:
            if not _right(one, await self._installer.find(one.name)):
                await report(f"pulling {one.name}")
                await self._pull(one, report)
        for one in wanted.models:
            if one.load:
                await load(self._models, one.name)
        kept = await self._remove_others(wanted) if wanted.remove_others else []
        return Applied(reason=f"kept, because pinned: {', '.join(kept)}" if kept else "")

    async def show(self) -> Shown:
        states = [state.model_dump(exclude_none=True) for state in await self._installer.states()]
        return Shown({"models": states})

    async def _pull(self, one: WantedModel, report: Report) -> None:
        told = partial(_tell, report, one.name, {"at": -100.0})
        await self._installer.pull(one.source or one.name, name=one.name, digest=one.digest, role=one.role, report=told)

    async def _remove_others(self, wanted: WantedModels) -> list[str]:
        """Names of those that are pinned and stay."""
        names = {one.name for one in wanted.models}
        pinned = {one.name for one in self._models.pinned()}
        others = [one.name for one in await self._installer.manifests() if one.name not in names]
        for name in others:
            if name not in pinned:
                await self._installer.remove(name)
        return [name for name in others if name in pinned]


async def _tell(report: Report, name: str, told: dict[str, Any], step: str, percent: float | None) -> None:
    """Progress for people, every tenth of it."""
    if percent is not None and not 0 <= percent - told["at"] < 10:
        told["at"] = percent
        await report(f"{name}: {step}, {percent:.0f} %")


def _right(wanted: WantedModel, found: Manifest | None) -> bool:
    if found is None:
        return False
    return wanted.digest is None or found.digest == wanted.digest


def _read(document: Document) -> WantedModels:
    try:
        return WantedModels.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"models: `{place}`: {first['msg']}.", param=place) from error
