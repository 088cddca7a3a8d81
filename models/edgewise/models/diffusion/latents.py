"""Latents of one picture as bytes: a safetensors file in memory, which names the model that can decode it.

Half precision: a decoder makes eight bits a colour of them, and 11 significant bits change hardly one of those.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from edgewise.core.errors import InvalidRequest

_NAME = "latents"
_MAX_HEADER = 4096
_TYPES: Final[Mapping[str, np.dtype[Any]]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
_MOST_HALF = 65504.0


def pack_latents(latents: torch.Tensor, made_by: str) -> bytes:
    """The bytes of `latents` [channels, height, width] in float16, or in float32 where one does not fit; `made_by` is written
    beside them."""
    values = latents.detach().to("cpu", torch.float32).numpy()
    kind = "F16" if float(np.abs(values).max(initial=0.0)) <= _MOST_HALF else "F32"
    data: bytes = values.astype(_TYPES[kind]).tobytes()
    tensor = {"dtype": kind, "shape": list(values.shape), "data_offsets": [0, len(data)]}
    header = json.dumps({"__metadata__": {"made_by": made_by}, _NAME: tensor}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def unpack_latents(data: bytes, made_by: str, wanted: tuple[int, int, int]) -> torch.Tensor:
    """The float32 latents of `pack_latents(..., made_by)`, in the shape that is `wanted`; trusts none of the bytes.

    Raises:
        InvalidRequest: They are something else, of another model or size, or hold a number that is not finite.
    """
    try:
        (length,) = struct.unpack_from("<Q", data)
        if not 0 < length <= _MAX_HEADER:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(data[8 : 8 + length])
        maker, tensor = header["__metadata__"]["made_by"], header[_NAME]
        shape = [int(size) for size in tensor["shape"]]
        body = memoryview(data)[8 + length :]
        kind = _TYPES[tensor["dtype"]]
        if len(shape) != 3 or min(shape) < 1 or math.prod(shape) * kind.itemsize != len(body):
            raise ValueError(f"{tensor['dtype']}{shape} in {len(body)} bytes")
        values = np.frombuffer(body, kind).astype(np.float32).reshape(shape)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise InvalidRequest(f"No latents ({error}): send what a request with `latents` returned.") from error
    if maker != made_by:
        raise InvalidRequest(f"These latents were made by {str(maker)[:80]!r}; {made_by!r} cannot decode them.")
    if tuple(shape) != wanted:
        raise InvalidRequest(f"These latents are {shape}; those of such a picture are {list(wanted)}.")
    if not np.isfinite(values).all():
        raise InvalidRequest("These latents hold numbers that are not finite.")
    return torch.from_numpy(values)
