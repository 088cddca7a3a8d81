"""What the doctor says of a cloud: the right thing, and the command that mends it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.checks import Check
from edgewise.core.settings import Settings
from edgewise.edge.offload.doctor import check_broker, check_cloud
from edgewise.wire.mqtt.link import LinkEvent
from edgewise.wire.mqtt.note import NAME, LinkNote
from tests.edge.offload.raw import Reply, raw_server, whole


@contextmanager
def serving(reply: Reply) -> Iterator[str]:
    """A server on a thread of its own: the doctor brings its own event loop."""
    loop, url, ready = asyncio.new_event_loop(), [""], threading.Event()
    stop = asyncio.Event()

    async def run() -> None:
        async with raw_server(reply) as server:
            url[0] = server.url
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert ready.wait(120)
    try:
        yield url[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def checks(home: Path, **cloud: Any) -> list[Check]:
    return list(check_cloud(Settings.model_validate({"home": home, "cloud": cloud})))


def says(status: str, body: object, **headers: str) -> Reply:
    return lambda method, path, asked: [whole(json.dumps(body).encode(), status, **headers)]


def test_without_a_cloud_there_is_nothing_to_check(tmp_path: Path) -> None:
    assert [(one.name, one.status) for one in checks(tmp_path)] == [("cloud", "ok")]
    assert list(check_broker(Settings.model_validate({"home": tmp_path}))) == []


def test_a_cloud_that_answers(tmp_path: Path) -> None:
    info = {"name": "rack", "tenant": "shop", "models": [{"model": "big", "digest": "sha256:" + "0" * 64}]}
    with serving(says("200 OK", info, date="Thu, 01 Jan 2026 00:00:00 GMT")) as url:
        link, clock, models = checks(tmp_path, url=url, key="k")
    assert (link.status, clock.status, models.status) == ("ok", "warn", "ok")
    assert "rack takes the key of 'shop'" in link.detail
    assert "behind" in clock.detail
    assert "in common: none; only there: big" in models.detail


@pytest.mark.parametrize(
    ("reply", "status", "word"),
    [
        (says("401 No", {"error": {"code": "invalid_api_key", "message": "Unknown."}}), "fail", "keys new"),
        (says("200 OK", {"something": "else"}), "fail", "same version"),
        (lambda method, path, body: [None], "warn", "everything runs here"),
    ],
)
def test_a_cloud_that_does_not(tmp_path: Path, reply: Reply, status: str, word: str) -> None:
    with serving(reply) as url:
        (check,) = checks(tmp_path, url=url, key="k")
    assert check.status == status
    assert word in check.remedy


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    (check,) = checks(tmp_path, url="http://127.0.0.1:9", key_file=tmp_path / "none")
    assert check.status == "fail"
    assert "cloud.key_file" in check.detail


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    settings = Settings.model_validate({"home": tmp_path, "mqtt": {"host": "127.0.0.1", "port": 9}})
    assert [(one.name, one.status) for one in check_broker(settings)] == [("broker", "warn")]


def test_a_broker_to_which_the_service_is_connected_is_not_connected_to(tmp_path: Path) -> None:
    settings = Settings.model_validate({"home": tmp_path, "mqtt": {"host": "127.0.0.1", "port": 9}})
    note = LinkNote(tmp_path / NAME)
    note.write(LinkEvent("up", "connected"))
    assert [(one.status, one.detail) for one in check_broker(settings)] == [
        ("ok", "127.0.0.1:9: the running service is connected")
    ]
    note.write(LinkEvent("down", "no route"))
    note.write(LinkEvent("down", "short"))
    assert [(one.status, one.detail) for one in check_broker(settings)] == [
        ("warn", "127.0.0.1:9: the running service has lost it: short")
    ]
    note.write(LinkEvent("clone", "another client uses the name"))
    assert [one.status for one in check_broker(settings)] == ["fail"]
    other = LinkNote(tmp_path / NAME)
    other.write(LinkEvent("up", "of a second process"))  # which has no say
    assert [one.status for one in check_broker(settings)] == ["fail"]
    note.close()  # as at the end of the process: nobody is connected now, and the broker itself is asked
    (asked,) = check_broker(settings)
    assert (asked.status, "running service" in asked.detail) == ("warn", False)


@pytest.mark.parametrize(
    ("bound", "broker", "status"),
    [("dev", True, []), (None, False, []), (None, True, ["warn"]), ("other", False, ["fail"])],
)
def test_a_key_for_another_device_or_for_none_is_told(
    tmp_path: Path, bound: str | None, broker: bool, status: list[str]
) -> None:
    info = {"name": "rack", "tenant": "shop", "device": bound}
    mqtt = {"uid": "dev", **({"host": "127.0.0.1"} if broker else {})}
    with serving(says("200 OK", info)) as url:
        found = check_cloud(Settings.model_validate({"home": tmp_path, "cloud": {"url": url}, "mqtt": mqtt}))
        told = [one for one in found if one.name == "cloud key"]
    assert [one.status for one in told] == status
    assert all("--device dev" in (one.remedy or "") for one in told)
