"""What a folder of PEFT's holds, before it is taken into the store."""

from __future__ import annotations

import os
from pathlib import Path

from edgewise.core.errors import InvalidRequest, UnsupportedModel
from edgewise.models.adapters.files import AdapterFiles
from edgewise.models.adapters.layout import CONFIG, WEIGHTS, read_layout
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.files import ModelFiles
from edgewise.models.importing import Candidate
from edgewise.models.longtail.estimate import read_network
from edgewise.models.manifest import ModelInfo
from edgewise.models.names import check_name, suggest_name


def inspect_adapter(folder: Path, name: str | None, base: ModelFiles) -> Candidate:
    """An adapter of `base`, held against its configuration.

    Args:
        folder: With adapter_config.json and adapter_model.safetensors.
        name: What to call it; derived from the folder's name where None.

    Raises:
        InvalidRequest: No adapter there, or no valid name.
        UnsupportedModel, BadModelFile: As `layout.read_layout`; or the base is no decoder of our own.
    """
    folder = folder.expanduser().absolute()
    paths = {file: (folder / file).resolve() for file in (CONFIG, WEIGHTS)}
    for file, path in paths.items():
        if not path.is_file() or not os.access(path, os.R_OK):
            raise InvalidRequest(f"{folder} has no {file} that can be read: PEFT's save_pretrained writes it.")
    chosen = name if name is not None else suggest_name(folder.name)
    if chosen is None:
        raise InvalidRequest(f"No name can be made of {folder.name!r}: choose one with --name.")
    network = read_network(base)
    if not isinstance(network, DecoderConfig):
        raise UnsupportedModel(f"'{base.name}' takes no adapters: models that read text alone do, on our own decoder.")
    files = AdapterFiles(name=check_name(chosen), digest="", config=str(paths[CONFIG]), weights=str(paths[WEIGHTS]))
    layout = read_layout(files, network)
    return Candidate(
        name=files.name,
        paths=paths,
        info=ModelInfo(
            role="adapter",
            format="safetensors",
            licence_model="unknown",
            parameters=layout.elements,
            chat_template="none",
            base=base.name,
        ),
        left_out=tuple(sorted(child.name for child in folder.iterdir() if child.name not in paths)),
    )
