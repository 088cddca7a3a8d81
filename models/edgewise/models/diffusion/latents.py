"""Latents of one picture as bytes: a safetensors file in memory, which names the model that can decode it."""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import torch

from edgewise.core.errors import InvalidRequest

_NAME = "latents"
_MAX_HEADER = 4096


def pack_latents(latents: torch.Tensor, made_by: str) -> bytes:
    """The bytes of `latents` [channels, height, width] in float32; `made_by` is written beside them."""
    values = latents.detach().to("cpu", torch.float32).contiguous()
    data = values.numpy().astype("<f4", copy=False).tobytes()
    tensor = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [0, len(data)]}
    header = json.dumps({"__metadata__": {"made_by": made_by}, _NAME: tensor}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def unpack_latents(data: bytes, made_by: str) -> torch.Tensor:
    """The float32 latents [channels, height, width] of `pack_latents(..., made_by)`; trusts none of the bytes.

    Raises:
        InvalidRequest: They are something else, of another model, or hold a number that is not finite.
    """
    try:
        (length,) = struct.unpack_from("<Q", data)
        if not 0 < length <= _MAX_HEADER:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(data[8 : 8 + length])
        maker, tensor = header["__metadata__"]["made_by"], header[_NAME]
        shape = [int(size) for size in tensor["shape"]]
        body = memoryview(data)[8 + length :]
        if tensor["dtype"] != "F32" or len(shape) != 3 or min(shape) < 1 or math.prod(shape) * 4 != len(body):
            raise ValueError(f"{tensor['dtype']}{shape} in {len(body)} bytes")
        values = np.frombuffer(body, "<f4").astype(np.float32).reshape(shape)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise InvalidRequest(f"No latents ({error}): send what a request with `latents` returned.") from error
    if maker != made_by:
        raise InvalidRequest(f"These latents were made by {str(maker)[:80]!r}; {made_by!r} cannot decode them.")
    if not np.isfinite(values).all():
        raise InvalidRequest("These latents hold numbers that are not finite.")
    return torch.from_numpy(values)
