"""Models that only the cloud has: their faces are fetched once, checked and kept; what is here keeps its own name."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from edgewise.core.errors import (
    DigestMismatch,
    EngineFault,
    EngineUnavailable,
    LinkLost,
    ModelNotFound,
    NoPlace,
)
from edgewise.core.privacy import Privacy, early_label
from edgewise.core.settings_links import CloudSettings
from edgewise.edge.offload.cloud import Cloud
from edgewise.edge.offload.faces import KEPT, FaceStore
from edgewise.edge.offload.health import Health
from edgewise.edge.offload.models import ModelsWithCloud
from edgewise.models.face import face_files
from edgewise.models.tiny import local_files, make_tiny_model
from edgewise.pipeline.listener import ServedListener
from edgewise.pipeline.model import Models
from edgewise.pipeline.plan import Outside
from edgewise.wire.face import Face, FaceFile, face_path
from edgewise.wire.messages import Capability, CloudInfo
from tests.edge.offload.double import FakeTransport
from tests.fakes.serving import fake_model
from tests.pipeline.transcribe.scripted import listener

DIGEST = "sha256:" + "b" * 64


class FaceServer:
    """A test double of the cloud's routes of faces.

    Attributes:
        asked: Paths, in order.
        lost: Whether there is no link.
    """

    def __init__(self, folder: Path) -> None:
        contents = face_files(local_files(make_tiny_model(folder)))
        self.files = {hashlib.sha256(content).hexdigest(): content for content in contents.values()}
        names = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
        self.face = Face(
            model="large",
            digest=DIGEST,
            format="safetensors",
            context=99,
            sampling={"temperature": 0.5},
            files=tuple(
                FaceFile(name=name, sha256=sha256, bytes=len(contents[name])) for name, sha256 in names.items()
            ),
        )
        self.asked: list[str] = []
        self.lost = False

    async def fetch(self, path: str) -> bytes:
        self.asked.append(path)
        if self.lost:
            raise LinkLost("No link.")
        if path == face_path(DIGEST):
            return self.face.model_dump_json().encode()
        return self.files[path.rpartition("/")[2]]


@pytest.fixture
def server(tmp_path: Path) -> FaceServer:
    return FaceServer(tmp_path / "model")


class OtherCloud(FakeTransport):
    """Has the model "large", and the device's own in a wider context."""

    own: Capability

    async def info(self) -> CloudInfo:
        self._link()
        large = Capability(model="large", digest=DIGEST, context=100)
        text = Capability(model="elsewhere", reads="text")
        painter = Capability(model="painter", kind="diffuse", digest=DIGEST)
        return CloudInfo(name="rack", tenant="test", models=(large, text, painter, self.own))


def with_models(
    folder: Path,
    server: FaceServer,
    use: Callable[[ModelsWithCloud, Health, OtherCloud], Awaitable[None]],
    place: Outside = "cloud",
) -> None:
    async def run() -> None:
        here = fake_model()
        transport = OtherCloud(losses=10**9 if server.lost else 0)
        transport.own = Capability(model="another name", digest=here.digest, context=here.context + 1000)
        health = Health((transport,), emit=lambda kind, message, **facts: None)
        cloud = Cloud(CloudSettings(), health, device="test", tokenizer=lambda name: here.tokenizer, place=place)
        models = ModelsWithCloud(Models([here]), cloud, FaceStore(folder / "faces", server.fetch))
        cloud.start()
        await health.wait_asked(5.0)
        try:
            await use(models, health, transport)
        finally:
            await cloud.stop()

    asyncio.run(run())


def test_it_is_listed_opened_with_its_own_tokenizer_and_not_fetched_twice(tmp_path: Path, server: FaceServer) -> None:
    async def use(models: ModelsWithCloud, health: Health, transport: OtherCloud) -> None:
        del health, transport
        cards = {card.name: card for card in await models.cards()}
        assert [card.where for card in cards.values()] == ["local", "cloud", "cloud", "cloud"]
        assert (cards["large"].context, cards["large"].loaded, cards["large"].owned_by) == (100, True, "cloud rack")
        assert "elsewhere" not in cards  # nothing here could tokenize for it
        model = await models.open("large")
        assert (model.here, model.context, model.digest, model.sampling) == (False, 100, DIGEST, {"temperature": 0.5})
        assert model.tokenizer.decode(model.tokenizer.encode("hello")) == "hello"
        assert await models.open("large") is model
        assert models.get("large") is model
        assert model.name not in models.engines()
        with pytest.raises(EngineUnavailable):
            await model.engine.submit(None)  # type: ignore[arg-type]
        with pytest.raises(ModelNotFound):
            await models.open("nobody's")

    with_models(tmp_path, server, use)
    count = len(server.asked)
    assert count == 1 + len(server.face.files)
    with_models(tmp_path, server, use)
    assert len(server.asked) == count


def test_without_a_link_a_known_one_opens_and_an_unknown_one_does_not(tmp_path: Path, server: FaceServer) -> None:
    async def fetch(models: ModelsWithCloud, health: Health, transport: OtherCloud) -> None:
        del health, transport
        await models.open("large")

    async def offline(models: ModelsWithCloud, health: Health, transport: OtherCloud) -> None:
        assert not health.state.up
        del transport
        assert (await models.open("large")).context == 99
        cards = {card.name: card.loaded for card in await models.cards()}
        assert cards["large"] is False

    with_models(tmp_path, server, fetch)
    server.lost = True
    with_models(tmp_path, server, offline)
    with pytest.raises(ModelNotFound):
        with_models(tmp_path / "new", server, fetch)


def test_the_context_of_the_cloud_counts_only_where_it_is_needed_and_allowed(
    tmp_path: Path, server: FaceServer
) -> None:
    async def use(models: ModelsWithCloud, health: Health, transport: OtherCloud) -> None:
        del health, transport
        name = models.all()[0].name
        model = await models.open(name)
        assert await models.open(name) is model
        ours = model.context
        assert model.context_for(ours, Privacy.ANY) == ours
        assert model.context_for(ours + 1, Privacy.ANY) == ours + 1000
        assert model.context_for(ours + 1, Privacy.SITE) == ours
        assert model.context_for(ours + 1, Privacy.PRIVATE) == ours

    with_models(tmp_path, server, use)


def test_models_and_context_of_a_peer_are_there_for_the_label_site_too(tmp_path: Path, server: FaceServer) -> None:
    async def use(models: ModelsWithCloud, health: Health, transport: OtherCloud) -> None:
        del health, transport
        model = await models.open(models.all()[0].name)
        ours = model.context
        longest = {label: model.context_for(ours + 1, label) for label in Privacy}
        assert longest == {Privacy.PRIVATE: ours, Privacy.SITE: ours + 1000, Privacy.ANY: ours + 1000}
        asking = early_label.set(lambda name: Privacy.PRIVATE)
        with pytest.raises(NoPlace, match="labelled 'private' does not go to the peer"):
            await models.open("large")
        assert server.asked == []
        early_label.reset(asking)
        asking = early_label.set(lambda name: Privacy.SITE)
        large = await models.open("large")
        early_label.reset(asking)
        assert (large.here, large.owned_by) == (False, "peer rack")
        assert {card.name: card.where for card in await models.cards()}["large"] == "peer"

    with_models(tmp_path, server, use, "peer")


def test_a_damaged_face_is_fetched_again(tmp_path: Path, server: FaceServer) -> None:
    store = FaceStore(tmp_path / "faces", server.fetch)
    face = asyncio.run(store.get(DIGEST))
    victim = store.files(face).paths["tokenizer.json"]
    victim.write_bytes(b"{}")
    server.asked.clear()
    asyncio.run(store.get(DIGEST))
    assert len(server.asked) == 1 + len(face.files)
    assert victim.read_bytes() != b"{}"


def test_what_is_not_what_was_named_is_not_kept(tmp_path: Path, server: FaceServer) -> None:
    store = FaceStore(tmp_path / "faces", server.fetch)
    name = next(iter(server.files))
    good, server.files[name] = server.files[name], b"something else"
    with pytest.raises(DigestMismatch):
        asyncio.run(store.get(DIGEST))
    assert asyncio.run(store.known()) == {}
    server.files[name] = good
    server.face = server.face.model_copy(update={"digest": "sha256:" + "c" * 64})
    with pytest.raises(EngineFault):
        asyncio.run(store.get(DIGEST))


def test_the_oldest_faces_go(tmp_path: Path, server: FaceServer) -> None:
    store = FaceStore(tmp_path / "faces", server.fetch)
    for number in range(KEPT + 3):
        (tmp_path / "faces" / f"{number:064d}").mkdir(parents=True)
    asyncio.run(store.get(DIGEST))
    assert len(list((tmp_path / "faces").iterdir())) == KEPT
    assert list(asyncio.run(store.known())) == ["large"]


def test_a_model_that_draws_is_listed_and_opened_without_a_face(tmp_path: Path, server: FaceServer) -> None:
    async def use(models: ModelsWithCloud, health: Health, transport: OtherCloud) -> None:
        del health, transport
        card = next(card for card in await models.cards() if card.role == "diffusion")
        assert (card.name, card.where, card.loaded, card.owned_by) == ("painter", "cloud", True, "cloud rack")
        for name in ("painter", None):
            model = await models.open_pictures(name)
            assert (model.name, model.here, model.digest) == ("painter", False, DIGEST)
        with pytest.raises(EngineUnavailable):
            await model.engine.submit(None)  # type: ignore[arg-type]
        with pytest.raises(ModelNotFound):
            await models.open_pictures("nobody's")
        assert not server.asked

    with_models(tmp_path, server, use)


def test_for_a_request_that_stays_here_the_cloud_is_not_asked(tmp_path: Path, server: FaceServer) -> None:
    async def use(models: ModelsWithCloud, health: Health, transport: OtherCloud) -> None:
        del health, transport
        early_label.set(lambda name: Privacy.PRIVATE if name == "large" else Privacy.ANY)
        with pytest.raises(NoPlace, match="labelled 'private' does not go to the cloud"):
            await models.open("large")
        assert not server.asked
        early_label.set(lambda name: Privacy.ANY)
        await models.open("large")
        fetched = len(server.asked)
        early_label.set(lambda name: Privacy.PRIVATE)
        await models.open("large")  # what is here tells nobody
        assert len(server.asked) == fetched > 0

    with_models(tmp_path, server, use)


class Hears(Models):
    """A test double of a device that has a model for speech."""

    def __init__(self, here: ServedListener) -> None:
        super().__init__([fake_model()])
        self._listener = here

    async def open_listener(self, name: str | None, *, keep_alive_s: float | None = None) -> ServedListener:
        assert (name, keep_alive_s) == ("scripted", 3.0)
        return self._listener


async def test_speech_is_heard_on_the_device_beside_a_cloud(tmp_path: Path, server: FaceServer) -> None:
    here = listener(engine=None)
    health = Health((FakeTransport(),), emit=lambda kind, message, **facts: None)
    cloud = Cloud(CloudSettings(), health, device="test", tokenizer=lambda name: fake_model().tokenizer)
    models = ModelsWithCloud(Hears(here), cloud, FaceStore(tmp_path / "faces", server.fetch))
    assert await models.open_listener("scripted", keep_alive_s=3.0) is here


def test_everything_that_is_asked_of_models_reaches_those_of_the_device() -> None:
    """What is not overridden would be answered by the empty set of models that the base class is."""
    asked = {name for name, member in vars(Models).items() if callable(member) and not name.startswith("_")}
    assert asked <= vars(ModelsWithCloud).keys()
