"""A service ends what it has opened, whatever befalls it and its parts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from fastapi import APIRouter

from edgewise.api.deps import ApiDependencies
from edgewise.core.errors import StorageError
from edgewise.core.sdnotify import Notifier
from edgewise.core.settings import Settings
from edgewise.core.sqlite import Database
from edgewise.serving.server import AddressUnavailable
from edgewise.serving.service import Part, Service


class Noted:
    """A part that notes what is asked of it."""

    def __init__(self, name: str, notes: list[str], *, breaks: bool = False) -> None:
        self._name = name
        self._notes = notes
        self._breaks = breaks
        self.routers: Sequence[APIRouter] = ()

    def start(self) -> None:
        self._notes.append(f"start {self._name}")

    async def stop(self) -> None:
        self._notes.append(f"stop {self._name}")
        if self._breaks:
            raise StorageError("The part cannot say goodbye.")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, host="127.0.0.1", port=0)


def test_a_part_that_fails_to_stop_does_not_keep_the_others_from_it(settings: Settings) -> None:
    notes: list[str] = []
    kept: list[Database] = []

    def extend(settings: Settings, deps: ApiDependencies) -> Sequence[Part]:
        del settings
        kept.append(deps.state)
        assert deps.end_service is not None
        deps.end_service(0)
        return Noted("first", notes), Noted("second", notes, breaks=True)

    with pytest.raises(StorageError, match="goodbye"):
        asyncio.run(Service(settings, None, Notifier.from_environ(), extend, preload=False).run())
    assert notes == ["start first", "start second", "stop second", "stop first"]
    with pytest.raises(RuntimeError, match="shutdown"):
        asyncio.run(kept[0].check())


def test_what_was_made_is_ended_where_the_port_is_taken(settings: Settings) -> None:
    notes: list[str] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = settings.model_copy(update={"port": other.getsockname()[1]})
        service = Service(
            taken, None, Notifier.from_environ(), lambda _settings, _deps: [Noted("only", notes)], preload=False
        )
        with pytest.raises(AddressUnavailable):
            asyncio.run(service.run())
    assert notes == ["stop only"]
