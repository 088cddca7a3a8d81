"""The kind `diffuse`: a picture model draws what a text says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Annotated, Any

from pydantic import ConfigDict, PositiveInt
from pydantic import Field as Limit

from edgewise.core.errors import InvalidRequest
from edgewise.core.privacy import Labels
from edgewise.engine.pictures.request import DiffuseParams
from edgewise.pipeline.chains.kinds import Call, Field, Medium, Outlook, Piece, Size, Work
from edgewise.pipeline.chains.run_work import RunWork, label_of, precise
from edgewise.pipeline.chains.spec import Strict
from edgewise.pipeline.model import Models
from edgewise.pipeline.pictures import Drawn, PictureRun, PictureTask, picture_demand
from edgewise.pipeline.plan import Plan

ANY_MODEL = "auto"
"""The first model that draws."""
StartPictures = Callable[[PictureTask], Awaitable[PictureRun]]
ExplainPictures = Callable[[PictureTask, int], Awaitable[Plan]]
_BYTES_PER_PIXEL = 1.5  # PNG
_BYTES_PER_TOKEN = 4


class Options(Strict):
    """As of `engine.pictures.request.DiffuseParams`; what is not given is as the model's makers recommend."""

    model_config = ConfigDict(strict=True)

    width: PositiveInt | None = None
    height: PositiveInt | None = None
    steps: PositiveInt | None = None
    guidance: Annotated[float, Limit(ge=0, le=100)] | None = None
    strength: Annotated[float, Limit(gt=0, le=1)] = 0.8
    cache: Annotated[float, Limit(ge=0, le=1)] = 0.0
    previews: Annotated[int, Limit(ge=0, le=8)] = 0
    seed: Annotated[int, Limit(ge=0, lt=2**53)] | None = None


class Diffuse:
    """Args:
    start: Begins a picture task.
    labels: Of models.
    explain: Tells where one would be drawn.
    """

    makes: Medium = "picture"
    splits = False
    fields: Mapping[str, Field] = {
        "prompt": Field(required=True),
        "negative_prompt": Field(),
        "image": Field(reads="picture"),
        "mask": Field(reads="picture"),
    }

    def __init__(self, models: Models, start: StartPictures, labels: Labels, explain: ExplainPictures) -> None:
        self._models = models
        self._start = start
        self._labels = labels
        self._explain = explain

    def check(self, fields: Set[str], options: Mapping[str, Any]) -> None:
        if "mask" in fields and "image" not in fields:
            raise ValueError("'mask' says which part of an 'image' is drawn anew; give both")
        Options.model_validate(options)

    async def begin(self, call: Call) -> Work:
        run = await self._start(await self._task(call))
        return await precise(_Picture(run), call, run.decision)

    async def explain(self, call: Call, missing: Size) -> Outlook:
        task = await self._task(call)
        plan = await self._explain(task, missing.bytes + _BYTES_PER_TOKEN * missing.tokens)
        size = Size(bytes=round(_BYTES_PER_PIXEL * picture_demand(task).pixels))
        return Outlook(plan=plan, model=task.model.name, privacy=task.privacy, makes=size, why="as PNG, by its size")

    async def _task(self, call: Call) -> PictureTask:
        model = await self._models.open_pictures(None if call.model == ANY_MODEL else call.model)
        given = Options.model_validate(call.options)
        said: dict[str, Any] = {name: one.strip() if isinstance(one, str) else one for name, one in call.input.items()}
        return PictureTask(
            id=call.id,
            model=model,
            params=DiffuseParams(**given.model_dump(exclude={"seed"}), **said),
            seed=call.seed & (2**53 - 1) if given.seed is None else given.seed,
            key=call.key,
            priority=call.priority,
            deadline_s=call.deadline_s,
            privacy=label_of(call, self._labels, model.names),
            policy=call.policy,
            allowed=call.allowed,
        )

    async def split(self, call: Call, text: str, tokens: int | None) -> list[str]:
        del text
        await self.room(call, tokens)
        return []

    async def room(self, call: Call, tokens: int | None) -> int:
        del tokens
        raise InvalidRequest(
            f"'{call.model}' draws: its prompt is not counted in tokens. Use each = \"sentence\".", param="each"
        )


class _Picture(RunWork[PictureRun]):
    """One picture as a stage's work."""

    def piece(self, item: Drawn) -> Piece:
        chunk = item.chunk
        return Piece(
            offset=chunk.offset,
            count=chunk.count,
            total=chunk.total,
            preview=chunk.preview,
            picture=chunk.picture,
            finish=chunk.finish,
        )
