"""How an engine has the ladder of its own encoder climbed, where that hears: judged by what a voice of the device reads aloud."""

from __future__ import annotations

from collections.abc import Mapping

from edgewise.core.log import get_logger
from edgewise.models.encoders.memory import space_for
from edgewise.models.encoders.record import REMEDY, read_ladder, read_unjudged
from edgewise.models.encoders.rung import Book, climb_beside, place_of
from edgewise.models.files import ModelFiles

log = get_logger(__name__)


def climb_hearing(files: ModelFiles, threads: int, options: Mapping[str, str], book: Book) -> None:
    """Climb beside requests, unless the ladder was climbed here, or nothing speaks on this device to be judged by.

    Args:
        threads: As the encoder runs.
        options: As of `rung.place_of`, `dtype` and `climb_bytes` among them.
    """
    place = place_of(threads, options)
    order = place.order(files, "speech-to-text", space_for(place.climb_bytes))
    if read_ladder(order.folder, files.digest) is not None:
        return
    unjudged = read_unjudged(order.folder)
    if not order.voices:
        why = "no voice is installed that could read aloud what judges it"
    elif unjudged is not None and unjudged.final and unjudged.voices == tuple(it.digest for it in order.voices):
        why = unjudged.why
    else:
        climb_beside(order, place.climb_bytes, book, lambda _: None, serving=f"torch-{place.dtype}")
        return
    log.warning("encoder_climb_skipped", model=files.name, reason=why, remedy=REMEDY.format(files.name))
