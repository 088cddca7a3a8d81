"""What "auto" means on this machine: kernels, weights, KV format, device, and the numeric class they make. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import get_args

from edgewise.core.errors import ConfigError
from edgewise.engine.config import DtypeName, KVDtypeName
from edgewise.engine.weight_choice import FP8_CAPABILITY, KERNELS, QUANTIZE, choose_weights
from edgewise.kernels.native.library import NATIVE_NUMERICS
from edgewise.models.decoder.kv_formats import NetworkConfig
from edgewise.models.decoder.native.formats import Quantize

# Processors with native bfloat16 arithmetic, by the flag the kernel lists: x86 AVX512-BF16 and AMX, Arm BF16.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_ISA_FLAGS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "sve2", "sve", "bf16", "asimd")

# Changes when a kernel's results do, as NATIVE_NUMERICS: pages on disk and streams of engines before and after must not be mixed.
TRITON_NUMERICS = 3

_WIDE_FORMATS = ("bfloat16", "float16")

WEIGHT_DTYPES = tuple(name for name in get_args(DtypeName) if name != "auto")
KV_DTYPES = tuple(name for name in get_args(KVDtypeName) if name != "auto")


@dataclass(frozen=True, slots=True)
class Numerics:
    """Resolved choices; `why` says for each "auto" what decided it, `lacking` what keeps "auto" from faster kernels."""

    device: str
    dtype: str
    kv_dtype: str
    quantize: Quantize
    why: tuple[str, ...]
    kernels: str = "reference"
    lacking: str = ""


def resolve(
    *,
    device: str,
    dtype: str,
    kv_dtype: str,
    quantize: str,
    cuda: bool,
    capability: tuple[int, int] | None = None,
    measured_kv: Collection[str] | None = None,
    failed_weights: Collection[str] = (),
    kernels: str = "auto",
    network: NetworkConfig | None = None,
    devices: int = 1,
) -> Numerics:
    """Turn configured names into definite ones.

    Args:
        device: "auto", "cpu" or "cuda".
        cuda: Whether a CUDA device is usable (the caller asks torch).
        capability: The CUDA device's compute capability; None on the CPU or where it does not matter.
        measured_kv: KV formats that passed the model's own gate (`models.gate_record`); None if it has none.
        failed_weights: Weight formats that the gate has measured and not passed.
        kernels: "auto", "reference", "native" or "triton".
        network: The model; None for one that only the reference kernels compute.
        devices: How many compute the model together.

    Raises:
        ConfigError: An unknown name, CUDA is asked for and there is none, or kernels or weights are asked for that the model
            or this machine does not have.
    """
    why: list[str] = []
    if device == "auto":
        device = "cuda" if cuda else "cpu"
        why.append(f"device {device}: " + ("CUDA is usable" if cuda else "no usable CUDA device"))
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"'engine.device' is {device!r}: use auto, cpu or cuda.", param="engine.device")
    if device == "cuda" and not cuda:
        raise ConfigError("'engine.device' is cuda, but torch finds no usable CUDA device.", param="engine.device")
    _require("dtype", dtype, ("auto", *WEIGHT_DTYPES))
    _require("quantize", quantize, QUANTIZE)
    _require("engine.kernels", kernels, KERNELS)
    if devices > 1:
        kernels = _together(kernels, devices)
        why.append(f"kernels reference: {devices} devices compute together (engine.tensor_parallel)")
    weights = choose_weights(
        kernels=kernels,
        quantize=quantize,
        dtype=dtype,
        device=device,
        network=network,
        failed=failed_weights,
        capability=capability,
    )
    why += weights.why
    if weights.dtype is not None:
        dtype = weights.dtype
    elif dtype == "auto":
        dtype, reason = _auto_dtype(device)
        why.append(f"dtype {dtype}: {reason}")
    if kv_dtype == "auto":
        kv_dtype, reason = _auto_kv_dtype(device, capability, measured_kv)
        why.append(f"kv_dtype {kv_dtype}: {reason}")
    _require("kv_dtype", kv_dtype, KV_DTYPES)
    return Numerics(device, dtype, kv_dtype, weights.quantize, tuple(why), weights.kernels, weights.lacking)


def _together(kernels: str, devices: int) -> str:
    """Other kernels do a step, or more, in one call: there is no place in it where devices could exchange sums."""
    if kernels not in ("auto", "reference"):
        raise ConfigError(
            f"'engine.kernels' is {kernels}, and {devices} devices compute together ('engine.tensor_parallel') with the "
            "reference kernels. Set engine.kernels to auto or reference, or engine.tensor_parallel to 1.",
            param="engine.kernels",
        )
    return "reference"


def picture_numerics(device: str, dtype: str, *, cuda: bool) -> Numerics:
    """As `resolve`, for a model that draws; "auto" is float32 on a CPU, few of which convolve in 16 bits any faster."""
    numerics = resolve(device=device, dtype=dtype, kv_dtype="float32", quantize="none", cuda=cuda)
    return replace(numerics, dtype="float32") if dtype == "auto" and numerics.device == "cpu" else numerics


def numeric_class(
    numerics: Numerics,
    *,
    torch_version: str,
    device_family: str,
    threads: int,
    kv_format: str | None = None,
    media: bool = False,
    devices: int = 1,
    launches: str = "",
) -> str:
    """The string inside which a continuation is byte-equal.

    Threads and instruction set count for the reference kernels on a CPU: they fix how torch splits reductions. The native ones
    give the same bits with all of them, but torch computes what a model sees or hears (`media`) beside those too. Tokens of a
    CPU are drawn alike in either case: by the native library wherever it is there, else by torch, which draws another token
    only where a number falls between two ids to within rounding (`kernels.sample.sample`). What draws is not in the string.

    `launches` is what of Triton's kernels' plan decides bits (`engine.kernel_plan`).

    `kv_format` says more than `numerics.kv_dtype` where layers differ (`kv_label`). The number of `devices` fixes how sums are
    split.
    """
    where = f"{numerics.device}-{device_family}" + (f"-t{threads}" if numerics.device == "cpu" else "")
    if numerics.kernels == "native":
        torch_too = f"-{device_family}-t{threads}" if media else ""
        where = f"{numerics.device}-native{NATIVE_NUMERICS}{torch_too}"
    elif numerics.kernels == "triton":
        where += f"-kernels{TRITON_NUMERICS}" + (f".{launches}" if launches else "")
    if devices > 1:
        where += f"-tp{devices}"
    return f"torch-{torch_version}/{where}/w-{numerics.dtype}-{numerics.quantize}/kv-{kv_format or numerics.kv_dtype}".replace(
        " ", "_"
    )


def cpu_family() -> str:
    """The widest instruction set that matters to results, e.g. "avx512_bf16"."""
    flags = cpu_flags()
    return next((flag for flag in _ISA_FLAGS if flag in flags), "generic")


@cache
def cpu_flags() -> frozenset[str]:
    """Feature flags of the first processor as the kernel lists them; empty where /proc/cpuinfo does not exist."""
    try:
        return parse_cpu_flags(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return frozenset()


def parse_cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The flags in a text of the form of /proc/cpuinfo (proc(5)), x86's or Arm's."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def native_bfloat16(flags: frozenset[str]) -> frozenset[str]:
    """Those of a processor's flags that say that it computes with bfloat16 itself."""
    return _BF16_FLAGS & flags


def _auto_dtype(device: str) -> tuple[str, str]:
    if device == "cuda":
        return "bfloat16", "CUDA device"
    native = native_bfloat16(cpu_flags())
    if native:
        return "bfloat16", f"the processor has {', '.join(sorted(native))}"
    return "float32", "the processor has no native bfloat16 arithmetic"


def _auto_kv_dtype(
    device: str, capability: tuple[int, int] | None, measured: Collection[str] | None
) -> tuple[str, str]:
    has_fp8 = device == "cuda" and capability is not None and capability >= FP8_CAPABILITY
    if measured is not None:
        order = ("fp8", "int8", *_WIDE_FORMATS) if has_fp8 else ("int8", *_WIDE_FORMATS)
        name = next((name for name in order if name in measured), "float32")
        return name, "the first format for this device that passed the model's gate (`edgewise models gate`)"
    if has_fp8 and capability is not None:
        return (
            "fp8",
            f"compute capability {capability[0]}.{capability[1]} converts it in hardware; half the bytes of 16 bits",
        )
    return "int8", "half the bytes of 16 bits within the stated quality bound"


def _require(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"'{name}' is {value!r}: use auto or one of {', '.join(allowed)}.", param=name)
