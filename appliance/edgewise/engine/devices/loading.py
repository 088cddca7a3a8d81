"""A model's shares into memory, on every device at once: the others load theirs while the leader loads its own."""

from __future__ import annotations

from collections.abc import Callable

import torch

from edgewise.engine.config import EngineConfig
from edgewise.engine.devices import place
from edgewise.engine.devices.group import DeviceGroup
from edgewise.engine.devices.messages import Share
from edgewise.engine.numerics import Numerics
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.kv_formats import NetworkConfig
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.parallel import ProcessGroup


def load_shares(
    config: EngineConfig,
    network: NetworkConfig,
    numerics: Numerics,
    group: DeviceGroup,
    *,
    num_pages: int,
    threads: int,
    progress: Callable[[float], None],
) -> Decoder:
    """The leader's decoder; whether the others' are loaded is known when the group has been joined.

    Args:
        network: The whole model, which `share_of` can divide.
        num_pages: Of the KV cache on each device.
        threads: Of each process.

    Raises:
        UnsupportedModel, BadModelFile, StorageError: As `load_decoder`.
        EngineFault: A process could not be started.
    """
    assert isinstance(network, DecoderConfig)
    device = place.device_of(numerics.device, 0)
    place.use(device)
    group.start(
        device,
        lambda rank: Share(
            rank=rank,
            size=group.size,
            meeting=group.meeting,
            model=config.model,
            max_context=config.max_context,
            device=numerics.device,
            dtype=numerics.dtype,
            kv_dtype=numerics.kv_dtype,
            num_pages=num_pages,
            threads=threads,
        ),
    )
    return load_decoder(
        config.model,
        device=device,
        dtype=getattr(torch, numerics.dtype),
        progress=progress,
        config=network,
        parallel=ProcessGroup(0, group.size),
    )
