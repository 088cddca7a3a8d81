"""Which heads of a Whisper's decoder follow the sound, so that their attention tells where words are spoken. Torch-free."""

from __future__ import annotations

from edgewise.core.errors import BadModelFile
from edgewise.core.log import get_logger
from edgewise.models.decoder.config import MAX_CONFIG_BYTES
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_object
from edgewise.models.whisper.config import GENERATION_NAME, WhisperConfig

log = get_logger(__name__)

Head = tuple[int, int]
"""Layer and head."""


def alignment_heads(files: ModelFiles, config: WhisperConfig) -> tuple[Head, ...]:
    """Those that generation_config.json names; without them all heads of the upper half of the layers, as OpenAI's code has it.

    Raises:
        BadModelFile, StorageError: generation_config.json is damaged or cannot be read.
    """
    named = _named(files)
    wrong = next((one for one in named if not _exists(one, config)), None)
    if named and wrong is None:
        return tuple(sorted(named))
    if wrong is not None:
        log.warning(
            "alignment_heads_ignored",
            model=files.name,
            reason=f"{GENERATION_NAME} names head {wrong[1]} of layer {wrong[0]}, which this decoder does not have",
            instead="all heads of the upper half of the layers",
        )
    layers = range(config.decoder_layers // 2, config.decoder_layers)
    return tuple((layer, head) for layer in layers for head in range(config.decoder_heads))


def _named(files: ModelFiles) -> list[Head]:
    if GENERATION_NAME not in files.paths:
        return []
    given = read_object(files.paths[GENERATION_NAME], GENERATION_NAME, most=MAX_CONFIG_BYTES).get("alignment_heads")
    try:
        return [(int(layer), int(head)) for layer, head in given or ()]
    except (TypeError, ValueError) as error:
        raise BadModelFile(f"{GENERATION_NAME}: 'alignment_heads' is no list of (layer, head): {error}.") from error


def _exists(head: Head, config: WhisperConfig) -> bool:
    return 0 <= head[0] < config.decoder_layers and 0 <= head[1] < config.decoder_heads
