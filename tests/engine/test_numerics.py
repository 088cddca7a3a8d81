"""What "auto" resolves to, and that unknown names are refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from edgewise.core.errors import ConfigError
from edgewise.engine import numerics as module
from edgewise.engine import weight_choice
from edgewise.engine.networks import describe
from edgewise.engine.numerics import (
    Numerics,
    cpu_family,
    native_bfloat16,
    numeric_class,
    parse_cpu_flags,
    resolve,
)
from edgewise.kernels.native.library import NATIVE_NUMERICS
from edgewise.models.files import ModelFiles


def test_auto_is_definite_and_explained() -> None:
    numerics = resolve(device="auto", dtype="auto", kv_dtype="auto", quantize="auto", cuda=False)
    assert numerics.device == "cpu"
    assert numerics.dtype in ("float32", "bfloat16")
    assert (numerics.kv_dtype, numerics.quantize) == ("int8", "none")
    assert numerics.kernels == "reference"
    assert len(numerics.why) == 5


def test_a_cuda_device_is_taken_when_it_is_there() -> None:
    numerics = resolve(device="auto", dtype="auto", kv_dtype="float16", quantize="none", cuda=True)
    assert (numerics.device, numerics.dtype, numerics.kv_dtype) == ("cuda", "bfloat16", "float16")


@pytest.mark.parametrize(
    ("capability", "kv_dtype"), [((8, 6), "int8"), ((8, 7), "int8"), ((8, 9), "fp8"), ((9, 0), "fp8"), ((12, 1), "fp8")]
)
def test_the_kv_format_follows_the_device_or_the_models_gate(capability: tuple[int, int], kv_dtype: str) -> None:
    def auto(cuda: bool, measured: set[str] | None = None) -> str:
        numerics = resolve(
            device="auto",
            dtype="auto",
            kv_dtype="auto",
            quantize="auto",
            cuda=cuda,
            capability=capability if cuda else None,
            measured_kv=measured,
        )
        assert any(line.startswith(f"kv_dtype {numerics.kv_dtype}: ") for line in numerics.why)
        return numerics.kv_dtype

    assert auto(cuda=True) == kv_dtype
    assert auto(cuda=False) == "int8"
    assert auto(cuda=True, measured={"int8", "fp8", "float16"}) == kv_dtype
    assert auto(cuda=False, measured={"fp8", "float16"}) == "float16"
    assert auto(cuda=True, measured={"bfloat16"}) == auto(cuda=False, measured={"bfloat16"}) == "bfloat16"
    assert auto(cuda=False, measured=set()) == "float32"


def test_nothing_falls_back_in_silence() -> None:
    with pytest.raises(ConfigError, match="no usable CUDA device"):
        resolve(device="cuda", dtype="auto", kv_dtype="auto", quantize="auto", cuda=False)
    for field, value in {"device": "tpu", "dtype": "int3", "kv_dtype": "fp4", "quantize": "int3"}.items():
        names = {"device": "cpu", "dtype": "auto", "kv_dtype": "auto", "quantize": "auto", field: value}
        with pytest.raises(ConfigError, match=value):
            resolve(**names, cuda=False)  # type: ignore[arg-type]


def test_the_numeric_class_names_all_that_matters() -> None:
    numerics = resolve(device="cpu", dtype="float32", kv_dtype="int8", quantize="none", cuda=False)
    name = numeric_class(numerics, torch_version="2.13.0+cpu", device_family="avx2", threads=2)
    assert name == "torch-2.13.0+cpu/cpu-avx2-t2/w-float32-none/kv-int8"
    mixed = numeric_class(
        numerics, torch_version="2.13.0+cpu", device_family="avx2", threads=2, kv_format="int8x1+bfloat16x5"
    )
    assert mixed.endswith("/kv-int8x1+bfloat16x5")
    native = replace(numerics, kernels="native", quantize="int4")
    name = numeric_class(native, torch_version="2.13.0+cpu", device_family="avx2", threads=2)
    assert name == f"torch-2.13.0+cpu/cpu-native{NATIVE_NUMERICS}/w-float32-int4/kv-int8"
    name = numeric_class(native, torch_version="2.13.0+cpu", device_family="avx2", threads=2, media=True)
    assert name == f"torch-2.13.0+cpu/cpu-native{NATIVE_NUMERICS}-avx2-t2/w-float32-int4/kv-int8"


def kernels_of(files: ModelFiles, **chosen: str) -> Numerics:
    names = {"device": "cpu", "dtype": "auto", "kv_dtype": "int8", "quantize": "auto", **chosen}
    return resolve(**names, cuda=False, network=describe(files))  # type: ignore[arg-type]


def test_native_kernels_hold_weights_as_the_file_does(
    starter_files: ModelFiles, tiny_model_factory: Callable[..., ModelFiles]
) -> None:
    found = kernels_of(starter_files)
    assert (found.kernels, found.quantize, found.dtype, found.lacking) == ("native", "int4", "float32", "")
    assert "quantize int4: most of the file's matrices are Q4_1" in found.why
    assert kernels_of(starter_files, quantize="int8").quantize == "int8"
    plain = kernels_of(tiny_model_factory(), dtype="bfloat16")
    assert (plain.kernels, plain.quantize, plain.dtype) == ("native", "none", "bfloat16")


def test_auto_says_what_keeps_it_from_native_kernels_and_native_is_refused_there(
    starter_files: ModelFiles, tiny_model_factory: Callable[..., ModelFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = {
        "float16": (tiny_model_factory(), {"dtype": "float16"}),
        "beside integer weights": (starter_files, {"dtype": "bfloat16"}),
    }
    for reason, (files, chosen) in cases.items():
        found = kernels_of(files, **chosen)
        assert found.kernels == "reference"
        assert reason in found.lacking
        assert f"kernels reference: {found.lacking}" in found.why
        with pytest.raises(ConfigError, match=reason):
            kernels_of(files, kernels="native", **chosen)
    with pytest.raises(ConfigError, match=r"'quantize' is int8.*float16"):
        kernels_of(starter_files, quantize="int8", dtype="float16")
    with pytest.raises(ConfigError, match="'quantize' is int4"):
        kernels_of(tiny_model_factory(), kernels="reference", quantize="int4")
    monkeypatch.setattr(weight_choice, "why_no_library", lambda: "the library was not built")
    assert kernels_of(starter_files).lacking == "the library was not built"
    with pytest.raises(ConfigError, match="not built"):
        kernels_of(starter_files, kernels="native")


@pytest.mark.parametrize(
    ("cpuinfo", "native"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 sse\n", True),
        ("flags\t\t: fpu amx_bf16\n", True),
        ("Features\t: fp asimd i8mm bf16\n", True),
        ("Features\t: fp asimd\n", False),
        ("model name: bf16\n", False),
        ("", False),
    ],
)
def test_bf16_in_cpuinfo(cpuinfo: str, native: bool) -> None:
    assert bool(native_bfloat16(parse_cpu_flags(cpuinfo))) is native


@pytest.mark.parametrize(
    ("cpuinfo", "family"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16\n", "avx512_bf16"),
        ("flags\t\t: fpu sse2\n", "generic"),
        ("Features\t: fp asimd aes crc32\n", "asimd"),  # Cortex-A78AE
        ("Features\t: fp asimd sve i8mm bf16\n", "sve"),  # Neoverse V1: vectors of 256 bits, other kernels than V2's
        ("Features\t: fp asimd sve sve2 i8mm bf16\n", "sve2"),  # Neoverse V2, V3AE
    ],
)
def test_families_that_compute_differently_have_names_of_their_own(
    cpuinfo: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cpu_flags", lambda: parse_cpu_flags(cpuinfo))
    assert cpu_family() == family


def test_what_decides_the_bits_of_a_cards_kernels_is_in_the_class() -> None:
    numerics = Numerics("cuda", "bfloat16", "int8", "int4", (), "triton")
    named = [
        numeric_class(numerics, torch_version="2", device_family="sm_90", threads=1, launches=label)
        for label in ("", "s512w4h.integers")
    ]
    assert named[0].replace("/w-", ".s512w4h.integers/w-") == named[1]
