"""From settings to the engine of a picture model."""

from __future__ import annotations

from pathlib import Path

from edgewise.core.settings import Settings
from edgewise.core.settings_schema import EngineSettings
from edgewise.engine.machine import Machine
from edgewise.models.diffusion.starter.tiny import make_tiny_pictures
from edgewise.models.store import Store
from edgewise.serving.pictures import read_pictures


def test_settings_reach_the_engine(tmp_path: Path) -> None:
    store = Store(tmp_path / "models")
    store.import_path(make_tiny_pictures(tmp_path / "source"), "pictures", role="diffusion")
    machine = Machine(cuda=False, capability=None, available=1 << 40)
    few, many = (
        read_pictures(
            Settings(
                home=tmp_path,
                engine=EngineSettings(max_pictures=count, max_picture_batch=2, offload_pictures=True, max_waiting=5),
            ),
            store,
            "pictures",
            machine,
        )
        for count in (1, 30)
    )
    assert (few.config.max_running, few.config.max_batch, few.config.max_waiting) == (1, 2, 5)
    assert few.config.offload
    assert few.needs.minimal == many.needs.minimal
    assert few.needs.full < many.needs.full
