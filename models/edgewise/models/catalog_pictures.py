"""The catalog's entry of the picture model that ships with Edgewise (docs/pictures-model.md)."""

from __future__ import annotations

from typing import Final

from edgewise.models.catalog_encoders import minilm_file
from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.manifest import ModelInfo, StoredFile
from edgewise.models.sources.packaged import PackagedSource

_WEIGHTS: Final = "diffusion/starter/weights"


def _shipped(file: StoredFile) -> CatalogFile:
    return CatalogFile(file=file, sources=(PackagedSource(f"{_WEIGHTS}/{file.name}"),))


STARTER_PICTURES: Final = CatalogEntry(
    name="starter-pictures",
    description="Draws icons, emoji and clip art from words, 128 x 128 pixels: a small model of our own.",
    info=ModelInfo(
        role="diffusion",
        format="safetensors",
        licence_model="Apache-2.0",
        licence_package="Apache-2.0",
        parameters=45_721_323,
        memory_bytes=320 << 20,  # network and encoder of prompts in float32, and room for a picture
    ),
    files=(
        _shipped(
            StoredFile(
                name="config.json", sha256="0ccc397cfeb772c8594daf68f562ad61cf9e0c3608dd0ad296e39b26ffcd55b4", size=618
            )
        ),
        _shipped(
            StoredFile(
                name="model.safetensors",
                sha256="151d074134c6a5c9c437fca782b6f4e64e4e5f2a93ff8a980cdfd17a23460032",
                size=23_546_668,
            )
        ),
        minilm_file(
            "model.safetensors",
            StoredFile(
                name="text_encoder.safetensors",
                sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                size=90_868_376,
            ),
        ),
        minilm_file(
            "tokenizer.json",
            StoredFile(
                name="tokenizer.json",
                sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                size=466_247,
            ),
        ),
    ),
)
