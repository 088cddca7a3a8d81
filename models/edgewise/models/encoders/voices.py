"""The voices of a store, which can read aloud what an encoder that hears is judged by."""

from __future__ import annotations

from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger
from edgewise.models.files import ModelFiles
from edgewise.models.store import Store

log = get_logger(__name__)

_ROLE = "text-to-speech"


def voices_of(store: Store) -> tuple[ModelFiles, ...]:
    """All models that speak, by name; one that is damaged is left out, and the log says so."""
    found = []
    for manifest in store.manifests():
        if manifest.info.role != _ROLE:
            continue
        try:
            found.append(store.resolve(manifest.name, _ROLE))
        except EdgewiseError as error:
            log.warning("voice_left_out", model=manifest.name, reason=error.message)
    return tuple(found)
