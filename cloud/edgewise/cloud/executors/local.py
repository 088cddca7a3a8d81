"""Works jobs off on the engine processes of this service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass

from edgewise.cloud.executors.protocol import Order, Produced
from edgewise.cloud.work import sampling_params
from edgewise.core.errors import EdgewiseError, EngineFault, ModelNotFound, UnsupportedModel, error_class
from edgewise.engine.api import EngineInfo
from edgewise.engine.request import GenerateRequest, RequestStats, TokenChunk
from edgewise.pipeline.model import Models, ServedModel
from edgewise.wire.messages import Capability, DiffuseWork, Work

_WEIGHT = 0.3  # of the latest measurement in the mean
_LEAST_PROMPT = 16  # tokens from which on a prefill tells something about speed


@dataclass(slots=True)
class Speed:
    """Measured items a second of one stream; None before anything was measured."""

    decode: float | None = None
    prefill: float | None = None

    def learn(self, stats: RequestStats, made: int) -> None:
        """`made` tokens came out of this attempt."""
        if made > 1 and stats.decode_s > 0:
            self.decode = _mean(self.decode, made / stats.decode_s)
        read = stats.prompt_tokens - stats.cached_tokens
        if read >= _LEAST_PROMPT and stats.prefill_s > 0:
            self.prefill = _mean(self.prefill, read / stats.prefill_s)


class LocalExecutor:
    """Implements `executors.protocol.Executor`."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._speeds: dict[str, Speed] = {}

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
            engine = engines.get(card.name)
            info = None if engine is None else engine.info
            speed = self._speeds.get(card.name, Speed())
            found.append(
                Capability(
                    model=card.name,
                    digest=card.digest,
                    context=card.context,
                    numeric_class=None if info is None else info.numeric_class,
                    precision=None if info is None else _precision(info),
                    speed=speed.decode,
                    prefill=speed.prefill,
                )
            )
        return found

    async def run(self, order: Order) -> AsyncIterator[Produced]:
        """See `Executor.run`."""
        work = order.work
        if isinstance(work, DiffuseWork):
            raise UnsupportedModel(f"The model '{work.model}' does not draw pictures here.", param="model")
        model = await self._open(work)
        request = GenerateRequest(
            id=f"{order.job}.{order.attempt}",
            prompt=work.prompt,
            sampling=sampling_params(work),
            output=order.tokens,
            salt=order.tenant,
            key=order.tenant,
            priority=order.priority,
            deadline_s=order.deadline_s,
            constraint=work.constraint,
        )
        stream = await model.engine.submit(request)
        async with contextlib.aclosing(stream):
            made = 0
            async for chunk in stream:
                made += len(chunk.tokens)
                if chunk.finish is not None and chunk.stats is not None:
                    self._speeds.setdefault(model.name, Speed()).learn(chunk.stats, made)
                yield _produced(chunk, model.engine.info)
                if chunk.finish is not None:
                    return
        raise EngineFault("The engine's stream ended without saying why.")

    async def _open(self, work: Work) -> ServedModel:
        """By digest where the device names one: a name may be another model's here."""
        name = work.model
        if work.digest is not None:
            names = [card.name for card in await self._models.cards() if card.digest == work.digest]
            if not names:
                raise ModelNotFound(
                    f"The model '{name[:100]}' with the digest {work.digest} is not here.", param="work.digest"
                )
            name = name if name in names else names[0]
        return await self._models.open(name)


def _produced(chunk: TokenChunk, info: EngineInfo | None) -> Produced:
    kind = None if chunk.error_code is None else error_class(chunk.error_code)
    return Produced(
        count=len(chunk.tokens),
        tokens=chunk.tokens,
        logprobs=None if chunk.logprobs is None else tuple((one.logprob, tuple(one.top)) for one in chunk.logprobs),
        finish=chunk.finish,
        facts=None if chunk.stats is None else asdict(chunk.stats),
        numeric_class=None if info is None else info.numeric_class,
        precision=None if info is None else _precision(info),
        error_code=chunk.error_code,
        error_message=chunk.error_message,
        retryable=kind is not None and issubclass(kind, EdgewiseError) and kind.retryable,
    )


def _precision(info: EngineInfo) -> dict[str, str]:
    return {"dtype": info.dtype, "kv_dtype": info.kv_dtype, "quantize": info.quantize}


def _mean(before: float | None, latest: float) -> float:
    return latest if before is None else (1 - _WEIGHT) * before + _WEIGHT * latest
