"""Whether a model can be divided among devices, and into what. Torch-free: the service asks before it starts an engine."""

from __future__ import annotations

from edgewise.core.errors import ConfigError
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.kv_formats import NetworkConfig

SETTING = "engine.tensor_parallel"


def share_of(network: NetworkConfig, devices: int) -> NetworkConfig:
    """What each of several devices computes of a model; all of it where there is only one.

    Raises:
        ConfigError: It cannot be divided so; the message says why, and what can be done.
    """
    if devices == 1:
        return network
    if not isinstance(network, DecoderConfig):
        raise ConfigError(
            f"'{SETTING}' is {devices}, but {network.architecture} cannot be divided: models that read text alone can, on our "
            f"own decoder. Set {SETTING} to 1, or serve this model by a service of its own.",
            param=SETTING,
        )
    try:
        return network.shard(devices)
    except ValueError as error:
        raise ConfigError(f"'{SETTING}' is {devices}, but {error}.", param=SETTING) from error
