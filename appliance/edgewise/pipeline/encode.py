"""One input to a model that answers at once, and its answer."""

from __future__ import annotations

from edgewise.core.errors import EngineFault
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest
from edgewise.pipeline.model import ServedEncoder
from edgewise.pipeline.run_base import raise_reported


async def encode(model: ServedEncoder, request: EncodeRequest) -> EncodeChunk:
    """What the model gives for one input. A caller who leaves cancels it.

    Raises:
        InvalidRequest: The model cannot read the input.
        QueueFull, EngineUnavailable, OutOfMemory, DeadlineExceeded: As of every engine.
    """
    stream = await model.engine.submit(request)
    try:
        async for chunk in stream:
            raise_reported(chunk)
            return chunk
    finally:
        await stream.aclose()
    raise EngineFault(f"The engine of '{model.name}' ended a request without an answer.")
