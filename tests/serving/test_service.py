"""A service ends what it has opened, whatever befalls it and its parts."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from fastapi import APIRouter

from edgewise.api.deps import ApiDependencies
from edgewise.api.events import Event
from edgewise.core.errors import ConfigError, StorageError
from edgewise.core.sdnotify import Notifier
from edgewise.core.settings import Settings
from edgewise.core.sqlite import Database
from edgewise.edge.app import device_parts
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from edgewise.security.keys import KeyStore
from edgewise.serving.server import AddressUnavailable, listen
from edgewise.serving.service import Extend, Part, Service


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


def run(settings: Settings, extend: Extend, *, preload: bool = False) -> int:
    return asyncio.run(Service(settings, None, Notifier.from_environ(), extend, preload=preload).run())


def opened(folder: Path) -> list[str]:
    """Files below a folder that this process has open."""
    return [file.path for file in psutil.Process().open_files() if Path(file.path).is_relative_to(folder)]


def test_where_a_part_cannot_be_made_nothing_that_was_opened_stays_open(settings: Settings) -> None:
    """The model's template has a process of its own, keys and state have files."""
    source = make_tiny_model(settings.home / "source")
    Store(settings.home / "models").import_path(source, "tiny")
    with KeyStore(settings.keys_file) as keys:
        _, token = keys.create("someone")
    children = {child.pid for child in psutil.Process().children()}
    notes: list[str] = []
    seen: list[str] = []
    kept: list[Database] = []

    def extend(settings: Settings, deps: ApiDependencies) -> Iterator[Part]:
        yield Noted("first", notes)
        assert deps.keys is not None
        assert deps.keys.verify(token) is not None
        kept.append(deps.state)
        seen.extend(opened(settings.home))
        raise ConfigError("The second part has no address.")

    with pytest.raises(ConfigError, match="no address"):
        run(settings.model_copy(update={"model": "tiny"}), extend, preload=True)
    assert notes == ["stop first"]
    assert any(path.endswith(settings.keys_file.name) for path in seen)
    assert opened(settings.home) == []
    assert {child.pid for child in psutil.Process().children()} <= children
    with pytest.raises(RuntimeError, match="shutdown"):
        asyncio.run(kept[0].check())


def test_the_parts_of_a_device_are_ended_where_one_beside_them_cannot_be_made(settings: Settings) -> None:
    """The key of the peers, which are made last, is missing."""
    made: list[Part] = []

    def extend(settings: Settings, deps: ApiDependencies) -> Iterator[Part]:
        for part in device_parts(settings, deps):
            made.append(part)
            yield part

    missing = settings.home / "no-such-key"
    peers = settings.peers.model_copy(update={"urls": ("http://127.0.0.1:9",), "keys": (f"local={missing}",)})
    with pytest.raises(ConfigError, match="peers"):
        run(settings.model_copy(update={"peers": peers}), extend)
    assert [type(part).__name__ for part in made] == ["HardwareWatch", "Governor", "Outbox", "Renewal"]
    assert opened(settings.home) == []


def test_a_part_that_fails_to_stop_does_not_hide_why_the_service_ended(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    notes: list[str] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = settings.model_copy(update={"port": other.getsockname()[1]})
        with pytest.raises(AddressUnavailable) as caught:
            run(taken, lambda _settings, _deps: [Noted("only", notes, breaks=True)])
    assert notes == ["stop only"]
    assert "not_ended" in [record.message for record in caplog.records]
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["Then the part Noted could not be ended: The part cannot say goodbye."]


def test_a_failed_engine_is_why_the_service_ended_whatever_its_parts_say(settings: Settings) -> None:
    services: list[Service] = []

    def extend(settings: Settings, deps: ApiDependencies) -> Iterable[Part]:
        services[0]._failure = ConfigError("The engine cannot be built.")
        assert deps.end_service is not None
        deps.end_service(0)
        return [Noted("only", [], breaks=True)]

    services.append(Service(settings, None, Notifier.from_environ(), extend, preload=False))
    with pytest.raises(ConfigError, match="cannot be built"):
        asyncio.run(services[0].run())


class Unstartable(Noted):
    def start(self) -> None:
        raise ConfigError("It does not start.")


def test_the_port_is_free_again_where_a_part_does_not_start(settings: Settings) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match="does not start") as caught:
        run(settings.model_copy(update={"port": port}), lambda _settings, _deps: [Unstartable("only", [])])
    for listener in listen("127.0.0.1", port):  # while the error's frames are still there
        listener.close()
    del caught


def test_a_fault_while_it_drains_is_logged_and_the_service_ends_all_the_same(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    def extend(settings: Settings, deps: ApiDependencies) -> Iterable[Part]:
        def broken(kind: str, message: str, **fields: Any) -> Event:
            raise ValueError("a fault")

        deps.events.emit = broken  # type: ignore[method-assign]
        assert deps.end_service is not None
        deps.end_service(0)
        return ()

    run(settings, extend)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["service_task_broke"]
