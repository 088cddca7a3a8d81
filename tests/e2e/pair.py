"""A device and its cloud as two real processes with a link between them that a test can break."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from edgewise.bench.link import Link
from edgewise.models.diffusion.starter.tiny import make_tiny_pictures
from scripts.service import CloudService, DeviceService
from tests.e2e.broker import BrokerProcess
from tests.e2e.service import TOKEN_BY_TOKEN, import_model, import_tiny, new_home, running

TOKEN = b",[]]"
"""Passes the link once for every token of an answer over HTTP to a `Pair.body`: the end of its entry of log-probabilities. Tokens
that the cloud writes to its log in one commit come in one event, so events say nothing of how far an answer is. The first token
is an event of its own, since it carries the engine's account."""
ONE_THREAD = {"EDGEWISE_ENGINE__THREADS": "1"}  # one numeric class on both sides, and no fight for the cores


@dataclass
class Pair:
    """Attributes:
    device_home, settings: What the device was started with, to start it again.
    """

    device: DeviceService
    cloud: DeviceService
    link: Link
    device_home: Path
    settings: Mapping[str, str]

    def body(self, prompt: str = "hello", max_tokens: int = 60, **fields: Any) -> dict[str, Any]:
        return {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "seed": 5, "logprobs": 0, **fields}

    def complete(self, prompt: str = "hello", *, headers: Mapping[str, str] | None = None, **fields: Any) -> Any:
        """The whole answer of a text completion; raises unless 200."""
        body = self.body(prompt, **fields)
        answer = httpx.post(f"{self.device.url}/v1/completions", json=body, headers=headers, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait_link(self, up: bool = True, seconds: float = 120.0) -> None:
        """Return once plans count with the link (or without it)."""
        wanted, limit = "cloud" if up else "local", time.monotonic() + seconds
        while self.complete(max_tokens=1)["edgewise"]["stages"][0]["where"] != wanted:
            assert time.monotonic() < limit, f"the device goes on to plan without regard to a link that is {up=}"
            time.sleep(0.1)


def import_pictures(home: Path, name: str, make: Callable[[Path], Path] = make_tiny_pictures) -> None:
    """Make a tiny model that draws and import it."""
    source = make(home / f"{name}-source")
    import_model(home, source, name, "diffusion")


def segments(answer: Any) -> list[tuple[str, int]]:
    """Who made which part of an answer."""
    return [(one["where"], one["offset"]) for one in answer["edgewise"]["stages"][0]["segments"]]


@contextmanager
def paired(
    *,
    only_cloud: str | None = None,
    pictures: bool = False,
    make_pictures: Callable[[Path], Path] = make_tiny_pictures,
    broker: BrokerProcess | None = None,
    tiny: Mapping[str, Any] | None = None,
    **settings: str,
) -> Iterator[Pair]:
    """Both on the tiny model; `settings` are environment settings of the device without their prefix.

    Args:
        only_cloud: Name of a second model, which the device does not have; with `pictures`, "painter" is another one that draws.
        pictures: Both also have a tiny model "pictures" that draws.
        make_pictures: Makes that one, and returns its folder.
        broker: Both are clients of it, and the link is the device's to the broker; there is none to the cloud itself.
        tiny: Sizes of the tiny model, see `edgewise.models.tiny.TinyModel`.
    """
    with ExitStack() as stack:
        cloud_home, device_home = (stack.enter_context(new_home(starter=False)) for _ in range(2))
        import_tiny(cloud_home, **(tiny or {}))
        if pictures:
            import_pictures(cloud_home, "pictures", make_pictures)
        shutil.copytree(cloud_home / "models", device_home / "models")
        if only_cloud is not None:
            import_tiny(cloud_home, only_cloud, seed=1)
        if only_cloud is not None and pictures:
            import_pictures(cloud_home, "painter")
        cloud_settings = {**ONE_THREAD, **TOKEN_BY_TOKEN}
        if broker is not None:
            cloud_settings |= {"EDGEWISE_MQTT__HOST": broker.host, "EDGEWISE_MQTT__PORT": str(broker.port)}
        cloud = stack.enter_context(CloudService(cloud_home, ["--model", "tiny"], environment=cloud_settings))
        near: BrokerProcess | DeviceService = cloud if broker is None else broker
        link = stack.enter_context(Link(near.host, near.port))
        over_broker = {"CLOUD__TRANSPORT": "mqtt", "MQTT__HOST": "127.0.0.1", "MQTT__PORT": str(link.port)}
        chosen = {
            **({"CLOUD__URL": link.url} if broker is None else over_broker),
            "CLOUD__PATIENCE_S": "8",
            "PLACEMENT__POLICY": "prefer-cloud",
            **settings,
        }
        environment = {**ONE_THREAD, **TOKEN_BY_TOKEN, **{f"EDGEWISE_{name}": value for name, value in chosen.items()}}
        service = stack.enter_context(running(model="tiny", home=device_home, environment=environment))
        pair = Pair(service, cloud, link, device_home, environment)
        pair.wait_link()
        yield pair
