"""What back ends that know tokens share: from an order to the engine's request, and from its chunks to what is logged."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from edgewise.cloud.executors.protocol import Order, Produced
from edgewise.cloud.work import names_of, sampling_params
from edgewise.core.errors import ModelNotFound, UnsupportedModel, is_retryable
from edgewise.engine.api import EngineInfo
from edgewise.engine.request import GenerateRequest, RequestStats, TokenChunk
from edgewise.pipeline.model import Models
from edgewise.wire.messages import DiffuseWork, Work

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


def request_of(order: Order) -> GenerateRequest:
    """What an engine is asked, going on after the tokens of the log.

    Raises:
        UnsupportedModel: It is no work for an engine of tokens.
        InvalidRequest: Its sampling is malformed.
    """
    work = order.work
    if isinstance(work, DiffuseWork):
        raise UnsupportedModel(f"The model '{work.model}' does not draw pictures here.", param="model")
    return GenerateRequest(
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


async def name_here(models: Models, work: Work) -> str:
    """What the model is called here: by digest where the device names one, since a name may be another model's here.

    Raises:
        ModelNotFound: No installed model has that digest.
    """
    if work.digest is None:
        known = {card.name for card in await models.cards()}
        return next((name for name in names_of(work) if name in known), work.model)
    names = [card.name for card in await models.cards() if card.digest == work.digest]
    if not names:
        raise ModelNotFound(
            f"The model '{work.model[:100]}' with the digest {work.digest} is not here.", param="work.digest"
        )
    return work.model if work.model in names else names[0]


def produced_of(chunk: TokenChunk, info: EngineInfo | None) -> Produced:
    """A chunk as it is logged; `info` is its engine's."""
    return Produced(
        count=len(chunk.tokens),
        tokens=chunk.tokens,
        logprobs=None if chunk.logprobs is None else tuple((one.logprob, tuple(one.top)) for one in chunk.logprobs),
        finish=chunk.finish,
        facts=None if chunk.stats is None else asdict(chunk.stats),
        numeric_class=None if info is None else info.numeric_class,
        precision=None if info is None else precision_of(info),
        error_code=chunk.error_code,
        error_message=chunk.error_message,
        retryable=is_retryable(chunk.error_code),
    )


def precision_of(info: EngineInfo) -> dict[str, str]:
    """Dtypes and formats of an engine."""
    return {"dtype": info.dtype, "kv_dtype": info.kv_dtype, "quantize": info.quantize}


def _mean(before: float | None, latest: float) -> float:
    return latest if before is None else (1 - _WEIGHT) * before + _WEIGHT * latest
