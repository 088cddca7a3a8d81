"""How engines of installed models are built where several of them share this machine."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from edgewise.cloud.executors.ray import ConfigOf
from edgewise.core.settings import Settings
from edgewise.engine.config import EngineConfig
from edgewise.engine.machine import look
from edgewise.models.store import Store
from edgewise.serving.served import read_model


def installed_config(settings: Settings) -> ConfigOf:
    """By a model's name: as this service would build its engine, with a share of what is available now."""
    store = Store(settings.home / "models")
    engine = settings.engine

    async def config_of(name: str) -> EngineConfig:
        machine = await look(engine.device)
        read = await asyncio.to_thread(read_model, settings, store, name, machine)
        read.close()
        budget = engine.memory_budget_bytes or int(machine.available * engine.memory_fraction)
        return one_of(read.config, settings.intake.replicas, budget)

    return config_of


def one_of(config: EngineConfig, replicas: int, budget_bytes: int) -> EngineConfig:
    """The configuration of one of `replicas` engines that share `budget_bytes`; a cache on disk, which has one owner, is off."""
    return replace(
        config,
        memory_budget_bytes=budget_bytes // replicas,
        disk_cache_dir=None,
        disk_cache_bytes=0,
        host_cache_bytes=0,
    )
