"""Requests of an engine as jobs on the wire."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict
from typing import Any, Literal

from edgewise.core.errors import EngineFault, InvalidRequest
from edgewise.core.priority import Priority
from edgewise.edge.offload.text import TextTokens
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.wire.messages import Capability, GenerateWork, JobRequest

_KEY = re.compile(r"[A-Za-z0-9._:/@-]{1,100}")


def job_key(request_id: str, offset: int = 0) -> str:
    """The same for the same request, so that handing it over again finds the same job; another one for every place from which
    it is begun anew."""
    plain = request_id if _KEY.fullmatch(request_id) else hashlib.sha256(request_id.encode()).hexdigest()
    return f"{plain}@{offset}" if offset else plain


def ttl_ms(deadline_s: float | None) -> int | None:
    return None if deadline_s is None else max(1, int(deadline_s * 1000))


def generate_job(
    request: GenerateRequest,
    capability: Capability,
    device: str,
    text: TextTokens | None = None,
    *,
    privacy: Literal["site", "any"] = "any",
) -> JobRequest:
    """The job that continues `request` on the cloud.

    Raises:
        EngineFault: The back end reads text only, and there is no tokenizer to write it with.
        InvalidRequest: Its prompt has media: the wire carries none, and without them the answer would be to another question.
    """
    if request.media:
        raise InvalidRequest("Pictures, film and sound in a prompt do not leave this device.", param="media")
    sampling = _sampling(request.sampling)
    work: dict[str, Any] = {"prompt": request.prompt, "output": request.output}
    if capability.reads == "text":
        if text is None:
            raise EngineFault(f"The cloud reads '{capability.model}' as text, and its tokenizer is not here.")
        work = {"text": text.text_of((*request.prompt, *request.output))}
        sampling["max_tokens"] = max(1, request.sampling.max_tokens - len(request.output))
    return JobRequest(
        key=job_key(request.id, len(request.output)),
        device=device,
        work=GenerateWork(
            model=capability.model,
            digest=capability.digest,
            sampling=sampling,
            constraint=request.constraint,
            **work,
        ),
        priority=Priority(request.priority).label,
        privacy=privacy,
        ttl_ms=ttl_ms(request.deadline_s),
    )


def _sampling(params: SamplingParams) -> dict[str, Any]:
    """Plain data; what has its default is left out, and ids are keys of text, as JSON has them."""
    fields = asdict(params)
    plain = asdict(SamplingParams(max_tokens=params.max_tokens))
    told = {name: value for name, value in fields.items() if name == "max_tokens" or value != plain[name]}
    if "logit_bias" in told:
        told["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    return told
