"""Which engines a planner is handed: who may go on for whom, and how long a link is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from edgewise.core.privacy import Clearance, Privacy, SiteClearance
from edgewise.core.settings_links import CloudSettings
from edgewise.edge.offload.cloud import Cloud
from edgewise.edge.offload.continuing import ContinuingEngine
from edgewise.edge.offload.health import Health
from edgewise.edge.offload.pictures import BackedPictures, RemotePictures
from edgewise.edge.offload.pictures_decoded import DecodedPictures
from edgewise.edge.offload.remote import RemoteEngine
from edgewise.pipeline.plan import Demand
from edgewise.wire.messages import Capability
from tests.edge.offload.double import CAPABILITY, DIGEST, FakeTransport, LocalEngine
from tests.fakes.text import ByteTokenizer

LOCAL = LocalEngine()
LEAVE = Clearance(Privacy.ANY)


def cloud(**settings: Any) -> Cloud:
    health = Health((FakeTransport(),), emit=lambda kind, message, **facts: None)
    return Cloud(CloudSettings(**settings), health, device="d", tokenizer=lambda name: ByteTokenizer())


def demand(**fields: Any) -> Demand:
    return Demand(**{"stage": "generate", "model": "tiny", "digest": DIGEST, "local": LOCAL, **fields})


def test_the_local_engine_goes_on_for_the_cloud_and_the_other_way_round() -> None:
    there = cloud().engine(LEAVE, demand(), CAPABILITY)
    assert isinstance(there, ContinuingEngine)
    assert (there.first, there.engines["local"], there.rules.go_on, there.rules.hedge_s) == ("cloud", LOCAL, True, 0.0)
    here = cloud(hedge_s=0.5).backed(LEAVE, demand(), CAPABILITY)
    assert isinstance(here, ContinuingEngine)
    assert (here.first, here.rules.hedge_s) == ("local", 0.5)


def test_leave_for_the_site_is_none_for_the_cloud() -> None:
    health = Health((FakeTransport(),), emit=lambda kind, message, **facts: None, place="peer")
    peer = Cloud(CloudSettings(), health, device="d", tokenizer=lambda name: ByteTokenizer(), place="peer")
    there = peer.engine(SiteClearance(Privacy.SITE), demand(), CAPABILITY)
    assert isinstance(there, ContinuingEngine)
    assert there.first == "peer"
    remote = there.engines["peer"]
    assert isinstance(remote, RemoteEngine)
    assert remote.road.privacy == "site"
    for ask in (cloud().engine, cloud().backed):
        with pytest.raises(ValueError, match="no leave for the cloud"):
            ask(SiteClearance(Privacy.ANY), demand(), CAPABILITY)


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"on_loss": "fail"}, {}),
        ({}, {"local": None}),
        ({}, {"allowed": ("cloud",)}),
        ({}, {"context": 100, "prompt_tokens": 90, "answer_tokens": 20}),
    ],
)
def test_where_the_local_engine_may_not_go_on_the_link_is_waited_for(settings: Any, fields: Any) -> None:
    there = cloud(patience_s=9.0, **settings).engine(LEAVE, demand(**fields), CAPABILITY)
    assert isinstance(there, RemoteEngine)
    assert (there.patience.submit_s, there.patience.stream_s) == (9.0, 9.0)


def test_a_link_that_is_gone_is_not_waited_for_where_the_answer_can_begin_here() -> None:
    there = cloud(patience_s=9.0).engine(LEAVE, demand(), CAPABILITY)
    remote = there.engines["cloud"]
    assert remote.patience.submit_s < 2.0
    assert remote.patience.stream_s == 9.0


@pytest.mark.parametrize(("settings", "fields"), [({"on_loss": "fail"}, {}), ({}, {"allowed": ("local",)})])
def test_an_answer_that_may_not_leave_is_not_backed(settings: Any, fields: Any) -> None:
    assert cloud(**settings).backed(LEAVE, demand(**fields), CAPABILITY) is LOCAL


def test_a_back_end_of_texts_gets_what_it_needs_to_read_them() -> None:
    there = cloud(on_loss="fail").engine(LEAVE, demand(), Capability(model="tiny", reads="text"))
    assert there.text is not None


def test_pictures() -> None:
    drawn = Capability(model="tiny", digest=DIGEST, kind="diffuse")
    painter = demand(stage="diffuse")
    assert isinstance(cloud().engine(LEAVE, painter, drawn), BackedPictures)
    assert isinstance(cloud().backed(LEAVE, painter, drawn), BackedPictures)
    assert isinstance(cloud(on_loss="fail").engine(LEAVE, painter, drawn), DecodedPictures)
    assert isinstance(cloud(hedge_s=1.0, on_loss="fail").engine(LEAVE, painter, drawn), DecodedPictures)


@pytest.mark.parametrize(
    ("settings", "fields"), [({"latents": "never"}, {}), ({}, {"local": None}), ({}, {"allowed": ("cloud",)})]
)
def test_pictures_that_may_not_be_decoded_here_come_finished(settings: Any, fields: Any) -> None:
    drawn = Capability(model="tiny", digest=DIGEST, kind="diffuse")
    there = cloud(on_loss="fail", **settings).engine(LEAVE, demand(stage="diffuse", **fields), drawn)
    assert isinstance(there, RemotePictures)
