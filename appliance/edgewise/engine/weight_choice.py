"""Which kernels compute a model, and how its weights are held for them. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import get_args

from edgewise.core.errors import ConfigError
from edgewise.engine.config import KernelsName, QuantizeName
from edgewise.kernels.native.library import why_not as why_no_library
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.cuda.support import why_not as why_not_on_card
from edgewise.models.decoder.kv_formats import NetworkConfig
from edgewise.models.decoder.native.formats import FLOAT_FORMATS, Quantize, stored_bits
from edgewise.models.multimodal.config import MultimodalConfig

KERNELS = get_args(KernelsName)
QUANTIZE = get_args(QuantizeName)

FP8_CAPABILITY = (8, 9)  # Ada and Hopper; earlier ones have no instructions for e4m3


@dataclass(frozen=True, slots=True)
class WeightChoice:
    """Attributes:
    kernels, quantize: Definite names.
    dtype: Of states between the products, where the kernels decide it; None leaves it to the settings.
    why: What decided each "auto".
    lacking: What keeps "auto" from native kernels, or on CUDA from Triton's; empty if nothing, or if they were not asked for.
    """

    kernels: str
    quantize: Quantize
    dtype: str | None
    why: tuple[str, ...]
    lacking: str = ""


def choose_weights(
    *,
    kernels: str,
    quantize: str,
    dtype: str,
    device: str,
    network: NetworkConfig | None,
    failed: Collection[str] = (),
    capability: tuple[int, int] | None = None,
) -> WeightChoice:
    """Args:
        kernels, quantize, dtype: As set; "auto" or a name.
        device: "cpu" or "cuda".
        network: The model; None for one that only the reference kernels compute.
        failed: Weight formats that the model's gate has measured and not passed, which "auto" passes over.
        capability: The CUDA device's compute capability; None on the CPU, or where it is not known.

    Raises:
        ConfigError: What was asked for by name cannot be had here or for this model.
    """
    fast = "triton" if device == "cuda" else "native"
    if quantize == "fp8":
        _require_fp8(device, capability)
    if kernels == "reference":
        lacking = None
    elif kernels not in ("auto", fast):
        lacking = f"those kernels do not compute on '{device}'"
    elif fast == "triton":
        lacking = _lacking_on_card(dtype, quantize, network)
    else:
        lacking = _lacking(dtype, quantize, network)
    if kernels in ("native", "triton") and lacking is not None:
        raise ConfigError(
            f"'engine.kernels' is {kernels}, but {lacking}. Use auto or reference.", param="engine.kernels"
        )
    if kernels == "reference" or lacking is not None:
        return _reference(quantize, lacking)
    if fast == "triton":
        return _triton(kernels, quantize)
    assert network is not None
    return _native(kernels, quantize, dtype, network, failed)


def _require_fp8(device: str, capability: tuple[int, int] | None) -> None:
    if device != "cuda":
        lacks = f"this engine computes on '{device}', where no kernels multiply fp8"
    elif capability is not None and capability < FP8_CAPABILITY:
        has, needs = (".".join(map(str, each)) for each in (capability, FP8_CAPABILITY))
        lacks = f"this card has compute capability {has}, and instructions for fp8 (e4m3) come with {needs}"
    else:
        return
    raise ConfigError(f"'quantize' is fp8, but {lacks}. Set quantize to int8, int4 or auto.", param="quantize")


def decoder_of(network: NetworkConfig | None) -> DecoderConfig | None:
    """The decoder that the native kernels would compute; None for models that run otherwise."""
    if isinstance(network, MultimodalConfig):
        return network.text
    return network if isinstance(network, DecoderConfig) else None


def _lacking_on_card(dtype: str, quantize: str, network: NetworkConfig | None) -> str | None:
    """Why Triton's kernels cannot compute this, as part of a sentence."""
    if not isinstance(network, DecoderConfig):
        return "this kind of model runs on the reference kernels"
    return why_not_on_card(network, dtype, "none" if quantize == "auto" else quantize)


def _lacking(dtype: str, quantize: str, network: NetworkConfig | None) -> str | None:
    """Why the native kernels cannot compute this, as part of a sentence."""
    decoder = decoder_of(network)
    if decoder is None or (isinstance(network, MultimodalConfig) and network.speaks):
        return "this kind of model runs on the reference kernels"
    lacks = why_no_library()
    if lacks is not None:
        return lacks
    integers = quantize in ("int8", "int4") or (quantize == "auto" and stored_bits(decoder)[0] != "none")
    if dtype != "auto" and dtype not in (("float32",) if integers else FLOAT_FORMATS):
        held = "beside integer weights states are float32" if integers else "float weights are float32 or bfloat16"
        return f"'dtype' is {dtype}, and in the native kernels {held}"
    return None


def _reference(quantize: str, lacking: str | None) -> WeightChoice:
    because = "" if lacking is None else f", and native ones cannot be had: {lacking}"
    if quantize not in ("auto", "none"):
        raise ConfigError(
            f"'quantize' is {quantize}, but the reference kernels compute with unquantized weights{because}.",
            param="quantize",
        )
    why = () if lacking is None else (f"kernels reference: {lacking}",)
    if quantize == "auto":
        why = (*why, "quantize none: the reference kernels compute with unquantized weights")
    return WeightChoice("reference", "none", None, why, lacking or "")


def _triton(kernels: str, quantize: str) -> WeightChoice:
    why = ["kernels triton: the fastest on CUDA"] if kernels == "auto" else []
    if quantize == "auto":
        why.append("quantize none: on CUDA weights are rounded where that is asked for")
    chosen: Quantize = {"int8": "int8", "int4": "int4", "fp8": "fp8"}.get(quantize, "none")  # type: ignore[assignment]
    return WeightChoice("triton", chosen, "bfloat16", tuple(why))


def _native(kernels: str, quantize: str, dtype: str, network: NetworkConfig, failed: Collection[str]) -> WeightChoice:
    decoder = decoder_of(network)
    assert decoder is not None
    why: list[str] = []
    if kernels == "auto":
        why.append("kernels native: the fastest on a CPU")
    chosen, reason = stored_bits(decoder)
    if quantize == "auto":
        if chosen in failed:
            reason += f", and {chosen} did not pass its gate (`edgewise models gate`)"
            chosen = "int8" if chosen == "int4" and "int8" not in failed else "none"
        why.append(f"quantize {chosen}: {reason}")
    else:
        chosen = {"none": "none", "int8": "int8", "int4": "int4"}[quantize]  # type: ignore[assignment]
    if chosen == "none":
        return WeightChoice("native", chosen, None, tuple(why))
    if dtype == "auto":
        why.append("dtype float32: states between products of integer weights")
    return WeightChoice("native", chosen, "float32", tuple(why))
