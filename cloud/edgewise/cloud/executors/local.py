"""Works jobs off on the engine processes of this service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from edgewise.cloud.executors.pictures import draw
from edgewise.cloud.executors.protocol import Order, Produced
from edgewise.cloud.executors.tokens import Speed, name_here, precision_of, produced_of, request_of
from edgewise.core.errors import EngineFault
from edgewise.engine.pictures.request import PictureInfo
from edgewise.pipeline.model import ModelCard, Models
from edgewise.wire.messages import Capability, DiffuseWork


class LocalExecutor:
    """Implements `executors.protocol.Executor`."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._speeds: dict[str, Speed] = {}
        self._drawing: dict[str, PictureInfo] = {}

    def __repr__(self) -> str:
        return f"LocalExecutor({self._models!r})"

    def start(self) -> None:
        """The service starts and ends the models."""

    async def stop(self) -> None:
        """See `start`."""

    async def capabilities(self) -> Sequence[Capability]:
        engines = self._models.engines()
        found = []
        for card in await self._models.cards():
            if card.role == "diffusion":
                found.append(_drawing(card, self._drawing.get(card.name)))
                continue
            if card.role != "llm":  # these run where they are asked
                continue
            engine = engines.get(card.name)
            info = None if engine is None else engine.info
            speed = self._speeds.get(card.name, Speed())
            found.append(
                Capability(
                    model=card.name,
                    digest=card.digest,
                    context=card.context,
                    numeric_class=None if info is None else info.numeric_class,
                    precision=None if info is None else precision_of(info),
                    speed=speed.decode,
                    prefill=speed.prefill,
                )
            )
        return found

    async def run(self, order: Order) -> AsyncIterator[Produced]:
        """See `Executor.run`."""
        if isinstance(order.work, DiffuseWork):
            async with contextlib.aclosing(self._draw(order.work, order)) as drawing:
                async for produced in drawing:
                    yield produced
            return
        request = request_of(order)
        model = await self._models.open(await name_here(self._models, order.work))
        stream = await model.engine.submit(request)
        async with contextlib.aclosing(stream):
            made = 0
            async for chunk in stream:
                made += len(chunk.tokens)
                if chunk.finish is not None and chunk.stats is not None:
                    self._speeds.setdefault(model.name, Speed()).learn(chunk.stats, made)
                yield produced_of(chunk, model.engine.info)
                if chunk.finish is not None:
                    return
        raise EngineFault("The engine's stream ended without saying why.")

    async def _draw(self, work: DiffuseWork, order: Order) -> AsyncGenerator[Produced, None]:
        model = await self._models.open_pictures(await name_here(self._models, work))
        async with contextlib.aclosing(draw(model.engine, work, order)) as drawing:
            async for produced in drawing:
                if model.engine.info is not None:
                    self._drawing[model.name] = model.engine.info
                yield produced


def _drawing(card: ModelCard, info: PictureInfo | None) -> Capability:
    return Capability(
        model=card.name,
        digest=card.digest,
        kind="diffuse",
        numeric_class=None if info is None else info.numeric_class,
        precision=None if info is None else {"dtype": info.dtype},
        speed=None if info is None or info.step_s <= 0 else 1 / info.step_s,
    )
