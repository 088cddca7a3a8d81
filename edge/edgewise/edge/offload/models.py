"""The models of this device and those of a place elsewhere, its cloud or a peer, by name: what is here answers to its own name
first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from edgewise.core.errors import ModelNotFound, NoPlace
from edgewise.core.privacy import early_label
from edgewise.edge.offload.absent import AbsentPictures
from edgewise.edge.offload.cloud import Cloud
from edgewise.edge.offload.faces import FaceStore, served_face
from edgewise.edge.placement.gates import LABELS
from edgewise.engine.api import Engine
from edgewise.models.manifest import Role
from edgewise.pipeline.listener import ServedListener
from edgewise.pipeline.model import (
    ModelCard,
    Models,
    Observed,
    PoolStatus,
    ServedEncoder,
    ServedModel,
    ServedPictures,
    unknown_model,
)
from edgewise.wire.messages import Capability

_STEPS, _PIXELS = 20, 512 * 512
"""What a picture takes where a request does not say: the wire does not tell what a model was trained for."""
_FIRST_S = 3.0
"""How long the first words of a cloud are waited for after the start, before its models count as unknown."""


class ModelsWithCloud(Models):
    """See `pipeline.model.Models`; what concerns memory and engines is asked of the models that are here.

    Args:
        here: The models of this device.
        cloud: Where the others are; a peer is one of them.
        faces: What is needed to tokenize for them.
    """

    def __init__(self, here: Models, cloud: Cloud, faces: FaceStore) -> None:
        super().__init__()
        self._here = here
        self._cloud = cloud
        self._faces = faces
        self._widened: dict[str, tuple[ServedModel, ServedModel]] = {}
        self._opened: dict[str, ServedModel] = {}
        self._opening = asyncio.Lock()

    def all(self) -> tuple[ServedModel, ...]:
        return self._here.all()

    def pinned(self) -> tuple[ServedModel, ...]:
        return self._here.pinned()

    def absent(self) -> tuple[str, ...]:
        return self._here.absent()

    def engines(self) -> Mapping[str, Engine]:
        return self._here.engines()

    def observed(self) -> Mapping[str, Observed]:
        return self._here.observed()

    def status(self) -> PoolStatus:
        return self._here.status()

    async def load(self, name: str) -> None:
        await self._here.load(name)

    async def unload(self, name: str) -> None:
        await self._here.unload(name)

    async def open_encoder(self, role: Role, name: str | None, *, keep_alive_s: float | None = None) -> ServedEncoder:
        """As `Models.open_encoder`: these run on this device only."""
        return await self._here.open_encoder(role, name, keep_alive_s=keep_alive_s)

    async def open_listener(self, name: str | None, *, keep_alive_s: float | None = None) -> ServedListener:
        """As `Models.open_listener`: speech is heard on this device only."""
        return await self._here.open_listener(name, keep_alive_s=keep_alive_s)

    async def open_pictures(self, name: str | None, *, keep_alive_s: float | None = None) -> ServedPictures:
        """As `Models.open_pictures`; a model that is not here is the cloud's, if that has it: nothing is fetched for it."""
        try:
            return await self._here.open_pictures(name, keep_alive_s=keep_alive_s)
        except ModelNotFound:
            await self._cloud.health.wait_asked(_FIRST_S)
            drawing = self._drawing()
            capability = next(iter(drawing.values()), None) if name is None else drawing.get(name)
            if capability is None:
                raise
        return ServedPictures(
            name=capability.model,
            engine=AbsentPictures(capability.model),
            digest=_digest(capability),
            created=0,
            steps=_STEPS,
            pixels=_PIXELS,
            owned_by=self._owner,
            here=False,
        )

    def get(self, name: str) -> ServedModel:
        opened = self._opened.get(name)
        return self._here.get(name) if opened is None else opened

    async def cards(self) -> tuple[ModelCard, ...]:
        """Those of this device, then those that only the cloud has; `loaded` then says that it can be reached."""
        here = await self._here.cards()
        names = {name for card in here for name in (card.name, *card.aliases)}
        known, up = await self._faces.known(), self._cloud.link.up
        offered = self._offered()
        there = [
            ModelCard(
                name=name,
                aliases=(),
                context=None if capability is None else capability.context,
                digest=face.digest if capability is None and face is not None else _digest(capability),
                created=0 if face is None else face.created,
                owned_by=self._owner,
                chat=None,
                loaded=up and capability is not None,
                where=self._cloud.place,
            )
            for name in sorted({*offered, *known} - names)
            for capability, face in [(offered.get(name), known.get(name))]
        ]
        drawing = [
            ModelCard(
                name=name,
                aliases=(),
                context=None,
                digest=_digest(capability),
                created=0,
                owned_by=self._owner,
                chat=None,
                loaded=up,
                where=self._cloud.place,
                role="diffusion",
            )
            for name, capability in sorted(self._drawing().items())
            if name not in names
        ]
        return (*here, *there, *drawing)

    async def open(self, name: str, *, keep_alive_s: float | None = None) -> ServedModel:
        """As `Models.open`; a model that is not here is the cloud's, if that has it.

        Raises:
            LinkLost: The cloud has it, and what is needed to tokenize for it cannot be fetched now.
            NoPlace: It would have to be fetched for a request that stays here: the cloud is not told of such a one.
        """
        try:
            return self._widen(await self._here.open(name, keep_alive_s=keep_alive_s))
        except ModelNotFound:
            async with self._opening:
                return await self._open_there(name)

    @property
    def _owner(self) -> str:
        place, info = self._cloud.place, self._cloud.info
        return place if info is None else f"{place} {info.name}"

    def _offered(self) -> dict[str, Capability]:
        """What the cloud has and this device can tokenize for, by name."""
        models = () if self._cloud.info is None else self._cloud.info.models
        usable = [one for one in models if one.kind == "generate" and one.reads == "tokens" and one.digest is not None]
        return {one.model: one for one in usable}

    def _drawing(self) -> dict[str, Capability]:
        """What the cloud draws pictures with, by name."""
        models = () if self._cloud.info is None else self._cloud.info.models
        return {one.model: one for one in models if one.kind == "diffuse" and one.digest is not None}

    def _widen(self, model: ServedModel) -> ServedModel:
        """With the context that the cloud has for the same model, which may hold what this device's does not."""
        models = () if self._cloud.info is None else self._cloud.info.models
        label = LABELS[self._cloud.place]
        context = next((one.context for one in models if one.digest == model.digest), None)
        if context == model.far_contexts.get(label):
            return model
        before = self._widened.get(model.name)
        if before is not None and before[0] is model and before[1].far_contexts.get(label) == context:
            return before[1]
        others = {one: known for one, known in model.far_contexts.items() if one is not label}
        wide = replace(model, far_contexts=others if context is None else {**others, label: context})
        self._widened[model.name] = model, wide
        return wide

    async def _open_there(self, name: str) -> ServedModel:
        await self._cloud.health.wait_asked(_FIRST_S)
        capability = self._offered().get(name)
        known = (await self._faces.known()).get(name)
        digest = _digest(capability) if capability is not None else None if known is None else known.digest
        if digest is None:
            raise unknown_model(name, [card.name for card in await self.cards()])
        opened = self._opened.get(name)
        context = None if capability is None else capability.context
        if opened is None or opened.digest != digest or context not in (None, opened.max_context):
            if known is None or known.digest != digest:
                self._check_may_ask(name)
            face = await self._faces.get(digest)
            served = await asyncio.to_thread(served_face, self._faces, face, capability, self._owner)
            if opened is not None:
                _close(opened)
            self._opened[name] = opened = replace(served, name=name)
        return opened

    def _check_may_ask(self, name: str) -> None:
        asked = early_label.get()
        if asked is not None and asked(name) < LABELS[self._cloud.place]:
            raise NoPlace(
                f"The model '{name}' is not on this device, and a request labelled '{asked(name).label}' does not go to the "
                f"{self._cloud.place}."
            )


def _digest(capability: Capability | None) -> str:
    assert capability is not None
    assert capability.digest is not None
    return capability.digest


def _close(model: ServedModel) -> None:
    """End the process of its template now, not when somebody notices that nobody needs it."""
    close = getattr(model.template, "close", None)
    if close is not None:
        close()
