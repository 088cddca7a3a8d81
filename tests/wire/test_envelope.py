from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from edgewise.core.errors import BadMessage, InvalidRequest
from edgewise.wire import topics
from edgewise.wire.codec import encode_json
from edgewise.wire.envelope import Sealer, VersionRefused, decode, encode, new_ulid
from edgewise.wire.messages import Chunk, GenerateWork, JobControl, JobEvent, JobRequest

KEYS = st.text("abcXYZ019._:/@-", min_size=1, max_size=128)
MESSAGES: st.SearchStrategy[BaseModel] = st.one_of(
    st.builds(
        JobRequest,
        key=KEYS,
        work=st.builds(
            GenerateWork,
            model=st.just("m"),
            prompt=st.lists(st.integers(0, 2**31 - 1), max_size=20).map(tuple),
            text=st.none() | st.text(max_size=20),
        ),
        ttl_ms=st.none() | st.integers(1, 10**9),
    ),
    st.builds(
        JobEvent,
        key=KEYS,
        event=st.builds(
            Chunk,
            attempt=st.integers(1, 9),
            offset=st.integers(0, 10**6),
            count=st.integers(0, 9),
            tokens=st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=9).map(tuple),
            logprobs=st.none() | st.just(([-0.5, [[1, -0.5]]],)),
        ),
    ),
    st.builds(
        JobControl, key=KEYS, op=st.sampled_from(["resume", "ack", "grant", "cancel"]), credit=st.integers(0, 99)
    ),
)


@given(MESSAGES, st.booleans())
def test_every_message_comes_back_as_it_went(message: BaseModel, binary: bool) -> None:
    sent = Sealer(7).seal(message, key="k", ttl_ms=5)
    received = decode(encode(sent, binary=binary))
    assert received == sent.model_copy(update={"body": received.body})
    assert received.read(type(message)) == message


def test_seq_orders_the_messages_of_a_sender_over_sessions() -> None:
    first, second = Sealer(1), Sealer(2)
    places = [sealer.seal(JobControl(key="k", op="ack")).place for sealer in (first, first, second, second)]
    assert places == sorted(set(places))


def test_later_versions_are_refused_as_such_and_unknown_fields_kept() -> None:
    envelope: dict[str, Any] = {"v": 1, "id": new_ulid(), "body": {}, "later": 5}
    assert decode(encode_json(envelope)).model_dump()["later"] == 5
    with pytest.raises(VersionRefused, match="version 2"):
        decode(encode_json({**envelope, "v": 2, "body": 7}))


@pytest.mark.parametrize(
    "change", [{"id": "x"}, {"seq": -1}, {"ttl_ms": 0}, {"body": []}, {"key": "k" * 129}, {"v": 0}, {"v": "x"}]
)
def test_improper_envelopes_are_the_typed_error(change: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        decode(encode_json({"v": 1, "id": new_ulid(), "body": {}, **change}))


def test_a_body_of_another_kind_is_the_typed_error() -> None:
    with pytest.raises(BadMessage, match=r"no JobRequest: key"):
        decode(encode_json({"id": new_ulid(), "body": {}})).read(JobRequest)


def test_ulids_increase_and_differ() -> None:
    made = [new_ulid() for _ in range(10_000)]
    assert made == sorted(set(made))
    assert all(len(name) == 26 for name in made)


# --- topics -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uid", ["", "a/b", "+", "#", "a+", ".a", "-a", "a b", "a\n", "\u00e9", "x" * 65, "a\x00"])
def test_names_that_would_reach_other_topics_are_refused(uid: str) -> None:
    with pytest.raises(InvalidRequest):
        topics.check_uid(uid)
    with pytest.raises(InvalidRequest):
        topics.job_events(uid, "1")
    with pytest.raises(BadMessage):
        topics.parse(f"f/1/d/{uid}/up/job/1")


UIDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


@given(UIDS, KEYS)
def test_topics_come_apart_as_they_were_built(uid: str, key: str) -> None:
    job = topics.job_id(key)
    assert topics.parse(topics.job_events(uid, job)) == topics.Topic(uid, "dn", ("job", job))
    assert topics.parse(topics.job_control(uid, job)) == topics.Topic(uid, "up", ("job", job))
    assert topics.parse(topics.job_request("bulk", uid)) == topics.Topic(uid, "job", ("bulk",))
    assert topics.parse(topics.blob(uid, "dn", job, "blk")) == topics.Topic(uid, "dn", ("blob", job, "blk"))
    assert topics.parse(topics.own(uid, "probe")) == topics.Topic(uid, "own", ("probe",))


@given(st.text(max_size=60))
def test_any_other_topic_is_the_typed_error(text: str) -> None:
    for topic in (text, f"f/1/{text}", f"f/1/d/u/up/{text}", f"f/1/job/{text}"):
        with contextlib.suppress(BadMessage):
            topics.check_uid(topics.parse(topic).uid)
