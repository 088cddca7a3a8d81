"""From a picture model's name in the store to something that can be asked to draw, and how its engine is built."""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.core.errors import BadModelFile
from edgewise.core.settings import Settings
from edgewise.engine.fit import Needs
from edgewise.engine.ledger import REFUSE_MARK
from edgewise.engine.machine import Machine
from edgewise.engine.numerics import picture_numerics
from edgewise.engine.pictures.config import PictureConfig
from edgewise.engine.pictures.request import PictureEngine
from edgewise.models.diffusion.sizes import PictureSizes, picture_sizes
from edgewise.models.store import Store
from edgewise.pipeline.model import ServedPictures
from edgewise.serving.served import with_remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPictures:
    """What was read of a picture model's files; `needs` says with how much memory it can be loaded."""

    config: PictureConfig
    sizes: PictureSizes
    needs: Needs
    created: int

    def served(self, engine: PictureEngine, aliases: tuple[str, ...]) -> ServedPictures:
        return ServedPictures(
            name=self.config.model.name,
            aliases=aliases,
            engine=engine,
            digest=self.config.model.digest,
            created=self.created,
            pixels=self.sizes.largest,
        )

    def close(self) -> None:
        """Nothing of it is open."""


def picture_config(settings: Settings, store: Store, name: str) -> PictureConfig:
    """The engine's part of the settings. Raises as `Store.resolve`."""
    engine = settings.engine
    return PictureConfig(
        model=store.resolve(name, "diffusion"),
        device=engine.device,
        dtype=settings.dtype,
        memory_fraction=engine.memory_fraction,
        max_running=engine.max_pictures,
        max_batch=engine.max_picture_batch,
        max_waiting=engine.max_waiting,
        threads=engine.threads,
        ageing_s=engine.ageing_s,
        offload=engine.offload_pictures,
        turns=str(settings.home / "engine-turns"),
    )


def read_pictures(settings: Settings, store: Store, name: str, machine: Machine) -> ReadPictures:
    """Read a picture model's headers and compute its size. Call it in a thread.

    Args:
        machine: `available` is what can be had for this model at most.

    Raises:
        ModelNotFound, BadModelFile, UnsupportedModel, ConfigError: Why it cannot be served.
    """
    config = picture_config(settings, store, name)
    numerics = picture_numerics(config.device, config.dtype, cuda=machine.cuda)
    try:
        sizes = picture_sizes(config.model, numerics.dtype)
    except BadModelFile as error:
        raise with_remedy(error, name) from error
    minimal = int(sizes.minimal / REFUSE_MARK) + 1
    full = (
        int((sizes.weights + sizes.workspace + config.max_running * sizes.largest * sizes.per_pixel) / REFUSE_MARK) + 1
    )
    return ReadPictures(
        config=config,
        sizes=sizes,
        needs=Needs(minimal=minimal, full=max(minimal, min(full, machine.available)), context=0),
        created=store.manifest(name).installed_seconds,
    )
