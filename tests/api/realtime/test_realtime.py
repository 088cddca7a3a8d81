"""/v1/realtime over doubles of the models: OpenAI's events, refusals by name, limits, and what is left when a client leaves."""

from __future__ import annotations

import asyncio
import base64
import gc
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketState
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from edgewise.api.deps import Access, ApiDependencies, VoiceLimits
from edgewise.api.realtime import connection
from edgewise.api.realtime.configuration import Configuration, ModelNames
from edgewise.api.realtime.schemas import MAX_TEXT
from edgewise.core.errors import EngineFault
from edgewise.core.priority import Priority
from edgewise.pipeline.model import Models
from edgewise.pipeline.voice.answer import Answer
from edgewise.pipeline.voice.conversation import Item
from edgewise.pipeline.voice.protocols import Response
from tests.api.harness import until
from tests.api.realtime.world import world
from tests.api.test_auth import Keys, Record
from tests.fakes.voice import DoubleModels, Listener, silence, speech

SESSION = {"type": "realtime"}


async def test_a_question_is_answered_with_openais_events_in_their_order() -> None:
    async with world() as service, service.client() as client:
        await client.say()
        done = (await client.until("response.done"))["response"]
    kinds = client.kinds()
    middle = {"response.output_audio_transcript.delta", "response.output_audio.delta"}
    assert [kind for kind in kinds if kind not in middle] == [
        "session.created",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.input_audio_transcription.completed",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert done["status"] == "completed"
    assert done["output"][0]["content"][0]["transcript"] == "Paris is the capital. It is large."
    assert done["usage"]["total_tokens"] == 13
    receipt = done["edgewise"]
    assert receipt["answer"] == {"model": "double"}
    assert receipt["transcription"] == {"model": "ears"}
    assert receipt["speech_ms"] == pytest.approx(len(client.audio()) / 48, abs=1)
    assert service.value("voice_answers_total", {"status": "completed"}) == 1
    assert service.value("voice_first_sound_seconds_count") == 1
    assert service.models.prepared == 1


async def test_openais_client_talks() -> None:
    """Its types take every event."""
    async with world() as service:
        openai = AsyncOpenAI(api_key="unused", websocket_base_url=f"{service.url}/v1", base_url=f"{service.url}/v1")
        async with openai.realtime.connect(model="tiny") as connection:
            await connection.session.update(
                session={
                    "type": "realtime",
                    "instructions": "Be brief.",
                    "audio": {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 300}}},
                }
            )
            sound = speech(0.5, 24_000) + silence(0.5, 24_000)
            await connection.input_audio_buffer.append(audio=base64.b64encode(sound).decode())
            seen: list[RealtimeServerEvent] = []
            while not seen or seen[-1].type != "response.done":
                seen.append(await asyncio.wait_for(connection.recv(), 60))
        await openai.close()
    event = seen[-1]
    assert event.type == "response.done"
    assert event.response.status == "completed"
    assert event.response.usage is not None
    assert event.response.usage.input_tokens == 10
    assert {type(one).__name__ for one in seen} >= {
        "SessionUpdatedEvent",
        "ResponseAudioDeltaEvent",
        "ConversationItemAdded",
    }
    assert service.models.asked[0][0] == {"role": "system", "content": "Be brief."}


async def test_speech_ends_an_answer_and_says_how_much_of_it_was_heard() -> None:
    models = DoubleModels(spoken_s=0.5, answers=[["A long story. ", "It goes on."], ["Yes."]])
    async with world(models) as service, service.client() as client:
        await client.say()
        await client.until("response.output_audio.delta")
        await client.say()
        truncated = await client.until("conversation.item.truncated")
        done = (await client.until("response.done"))["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        assert done["output"][0]["id"] == truncated["item_id"]
        assert (await client.until("response.done"))["response"]["status"] == "completed"
    assert service.value("voice_barge_ins_total") == 1


async def test_a_client_may_end_its_turns_itself_and_at_16_khz() -> None:
    async with world() as service, service.client() as client:
        format = {"type": "audio/pcm", "rate": 16000}
        await client.send(
            "session.update",
            session={
                "type": "realtime",
                "audio": {"input": {"turn_detection": None, "format": format}, "output": {"format": format}},
            },
        )
        session = (await client.until("session.updated"))["session"]
        assert session["audio"]["input"]["turn_detection"] is None
        assert session["audio"]["output"]["format"]["rate"] == 16000
        await client.say(rate=16_000)
        await client.send("input_audio_buffer.commit")
        await client.until("conversation.item.input_audio_transcription.completed")
        assert not client.of("response.created")
        await client.send("response.create", response={"output_modalities": ["text"]})
        done = (await client.until("response.done"))["response"]
        assert done["output"][0]["content"] == [{"type": "output_text", "text": "Paris is the capital. It is large."}]
        assert not client.audio()
        await client.send("response.create")
        await client.until("response.done")
        assert len(service.models.transcribed[0]) == len(speech(0.5) + silence(0.7))
        assert (await client.refusal("input_audio_buffer.commit"))["param"] == "type"


async def test_written_items_are_added_truncated_and_deleted() -> None:
    async with world() as service, service.client() as client:
        content = [{"type": "input_text", "text": "Hello."}]
        await client.send(
            "conversation.item.create", item={"id": "q", "type": "message", "role": "user", "content": content}
        )
        added = await client.until("conversation.item.done")
        assert added["item"]["content"] == [{"type": "input_text", "text": "Hello."}]
        again = await client.refusal(
            "conversation.item.create", item={"id": "q", "type": "message", "role": "user", "content": content}
        )
        assert again["param"] == "item.id"
        await client.send("response.create")
        done = (await client.until("response.done"))["response"]
        spoken = done["output"][0]["id"]
        await client.send("conversation.item.truncate", item_id=spoken, content_index=0, audio_end_ms=0)
        assert (await client.until("conversation.item.truncated"))["edgewise"]["transcript"] == ""
        error = await client.refusal("conversation.item.truncate", item_id=spoken, content_index=0, audio_end_ms=10**6)
        assert error["param"] == "audio_end_ms"
        await client.send("conversation.item.delete", item_id="q")
        await client.until("conversation.item.deleted")
        assert (await client.refusal("conversation.item.delete", item_id="q"))["param"] == "item_id"
    assert service.models.asked == [
        ({"role": "system", "content": added_instructions(service)}, {"role": "user", "content": "Hello."})
    ]


def added_instructions(service: Any) -> str:
    text: str = service.models.asked[0][0]["content"]
    assert "spoken conversation" in text
    return text


@pytest.mark.parametrize(
    ("kind", "fields", "param", "code"),
    [
        ("conversation.item.retrieve", {"item_id": "a"}, "type", "unsupported_parameter"),
        ("output_audio_buffer.clear", {}, "type", "unsupported_parameter"),
        ("session.update", {"session": {"type": "transcription"}}, "session.type", "invalid_value"),
        ("session.update", {"session": SESSION | {"voice": "alloy"}}, "session.voice", "unknown_parameter"),
        ("session.update", {"session": SESSION | {"tools": [{}]}}, "session.tools", "unsupported_parameter"),
        ("session.update", {"session": SESSION | {"model": "other"}}, "session.model", "unsupported_parameter"),
        (
            "session.update",
            {"session": SESSION | {"audio": {"input": {"noise_reduction": {"type": "near_field"}}}}},
            "session.audio.input.noise_reduction",
            "unsupported_parameter",
        ),
        (
            "session.update",
            {"session": SESSION | {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}},
            "session.audio.input.turn_detection.type",
            "invalid_value",
        ),
        (
            "session.update",
            {"session": SESSION | {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 3.0}}}}},
            "session.audio.input.turn_detection.threshold",
            "invalid_value",
        ),
        (
            "session.update",
            {"session": SESSION | {"audio": {"output": {"format": {"type": "audio/pcmu"}}}}},
            "session.audio.output.format.type",
            "invalid_value",
        ),
        (
            "session.update",
            {"session": SESSION | {"audio": {"input": {"transcription": {"language": "xx"}}}}},
            "language",
            "invalid_value",
        ),
        ("input_audio_buffer.append", {"audio": "*"}, "audio", "invalid_value"),
        ("input_audio_buffer.append", {"audio": "AAAA"}, "audio", "invalid_value"),
        ("input_audio_buffer.append", {}, "audio", "missing_required_parameter"),
        ("response.create", {"response": {"tools": [{}]}}, "response.tools", "unsupported_parameter"),
        ("response.create", {"response": {"conversation": "none"}}, "response.conversation", "unsupported_parameter"),
        ("response.cancel", {}, "type", "invalid_value"),
        (
            "conversation.item.create",
            {
                "item": {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "a" * (MAX_TEXT + 1)}],
                }
            },
            "item.content[0].text",
            "invalid_value",
        ),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(
    kind: str, fields: dict[str, Any], param: str, code: str
) -> None:
    async with world() as service, service.client() as client:
        error = await client.refusal(kind, **fields)
        assert (error["param"], error["code"]) == (param, code)
        await client.say()
        await client.until("response.done")


async def test_messages_that_are_no_events_are_refused_and_the_session_goes_on() -> None:
    async with world(voice=VoiceLimits(max_message_bytes=200_000)) as service, service.client() as client:
        for message, code in (
            (b"\x00\x01", "invalid_json"),
            ("{", "invalid_json"),
            ("[" * 100_000, "invalid_json"),
            ("[]", "invalid_json"),
            ('{"type": "x", "event_id": "\\ud800"}', "invalid_json"),
            ('{"type": {}}', "unsupported_parameter"),
            ('{"x": "' + "a" * 200_000 + '"}', "payload_too_large"),
        ):
            await client.socket.send(message)
            assert (await client.until("error"))["error"]["code"] == code
        await client.say()
        await client.until("response.done")


async def test_the_input_buffer_is_bounded() -> None:
    async with world(voice=VoiceLimits(max_turn_s=1.0)) as service, service.client() as client:
        await client.send("session.update", session=SESSION | {"audio": {"input": {"turn_detection": None}}})
        await client.say(0.5, 0.4)
        error = await client.refusal("input_audio_buffer.append", audio=base64.b64encode(silence(0.5, 24_000)).decode())
        assert error["param"] == "audio"
        assert "voice.max_turn_s" in error["message"]
        await client.send("input_audio_buffer.clear")
        await client.until("input_audio_buffer.cleared")
        await client.say(0.5, 0.4)
        await client.send("input_audio_buffer.commit")
        await client.until("conversation.item.done")


async def test_one_session_too_many_is_refused_before_it_begins() -> None:
    async with world(voice=VoiceLimits(max_sessions=1)) as service:
        async with service.client():
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"{service.url}/v1/realtime", proxy=None)
            assert refused.value.response.status_code == 429
            assert b"voice.max_sessions" in (refused.value.response.body or b"")
            assert service.value("voice_sessions") == 1
        await until(lambda: service.value("voice_sessions") == 0)
        async with service.client():
            pass


async def test_a_session_ends_after_its_longest_time() -> None:
    async with world(voice=VoiceLimits(max_session_s=0.3)) as service, service.client() as client:
        error = (await client.until("error"))["error"]
        assert error["code"] == "session_expired"
        with pytest.raises(ConnectionClosed) as closed:
            await client.until("never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001


@pytest.mark.parametrize("query", ["?model=other", "?voice=joe"])
async def test_what_the_url_asks_is_checked_before_the_session_begins(query: str) -> None:
    async with world() as service:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{service.url}/v1/realtime{query}", proxy=None)
    assert refused.value.response.status_code == (404 if "model" in query else 400)


async def test_keys_hosts_and_origins(caplog: pytest.LogCaptureFixture) -> None:
    keys = Keys({"good": Record("1", "app"), "scraper": Record("4", "s", frozenset({"metrics"}))})
    access = Access(require_key=True, allowed_origins=("https://good.example",))
    async with world(keys=keys, access=access) as service:

        async def status(**options: Any) -> int:
            try:
                async with connect(f"{service.url}/v1/realtime", proxy=None, **options):
                    return 101
            except InvalidStatus as error:
                return error.response.status_code

        assert await status() == 401
        assert await status(additional_headers={"Authorization": "Bearer bad"}) == 401
        assert await status(additional_headers={"Authorization": "Bearer scraper"}) == 403
        key = {"Authorization": "Bearer good"}
        assert await status(additional_headers=key) == 101
        assert await status(additional_headers=key, origin="https://evil.example") == 403
        assert await status(additional_headers=key, origin="https://good.example") == 101
        assert await status(subprotocols=["realtime", "openai-insecure-api-key.good"]) == 101
        assert await status(subprotocols=["realtime", "openai-insecure-api-key.bad"]) == 401
        assert await status(additional_headers=key | {"X-Edgewise-Priority": "realtime"}) == 403
        assert await status(additional_headers=key | {"X-Edgewise-Privacy": "secret"}) == 400
    async with world(access=Access()) as service:
        with pytest.raises(InvalidStatus) as refused:
            await connect(
                "ws://evil.example/v1/realtime", host="127.0.0.1", port=int(service.url.rpartition(":")[2]), proxy=None
            )
        assert refused.value.response.status_code == 421
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_speech_is_of_the_most_urgent_class_unless_its_key_is_not() -> None:
    keys = Keys({"good": Record("1", "app", priority="background")})
    async with world(keys=keys) as service:
        async with service.client():
            pass
        async with service.client(additional_headers={"Authorization": "Bearer good"}):
            pass
        async with service.client(additional_headers={"X-Edgewise-Priority": "bulk"}):
            pass
    assert [one.asked_priority for one in service.asked] == [Priority.REALTIME, Priority.BACKGROUND, Priority.BULK]


async def test_a_client_that_leaves_frees_everything() -> None:
    async with world(DoubleModels(spoken_s=0.5)) as service:
        async with service.client() as client:
            await client.say()
            await client.until("response.output_audio.delta")
            service.models.write_on.clear()
            client.socket.transport.abort()
            await until(lambda: service.value("voice_sessions") == 0)
        assert all(writing.closed for writing in service.models.writings)
        assert service.models.open_speech == 0


async def test_a_session_ends_though_its_client_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_FLUSH_S", 0.05)
    connected = asyncio.Event()

    async def send(message: Message) -> None:
        if message["type"] != "websocket.accept":
            await asyncio.Event().wait()

    async def receive() -> Message:
        if not connected.is_set():
            connected.set()
            return {"type": "websocket.connect"}
        await asyncio.Event().wait()
        raise AssertionError

    deps = ApiDependencies(models=Models(), voice=VoiceLimits(max_session_s=0.05))
    socket = WebSocket({"type": "websocket"}, receive, send)
    await socket.accept()
    names = ModelNames(chat="tiny", transcription="ears", speech="mouth", vad="detector")
    serving = connection.Connection(socket, deps, DoubleModels(), Configuration(names=names), Listener())
    session = asyncio.create_task(serving.serve())
    telling = asyncio.create_task(serving._outbox.put({"type": "large", "text": "x" * (2 << 20)}))
    error = await asyncio.wait_for(session, 30)
    assert isinstance(error, connection.SessionExpired)
    await telling


async def test_a_session_that_is_cancelled_while_it_ends_leaves_nothing_running() -> None:
    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        """Takes all."""

    stubborn, ends = asyncio.Event(), asyncio.Event()

    class Slow(DoubleModels):
        async def prepare(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stubborn.set()
                await ends.wait()

    socket = WebSocket({"type": "websocket"}, receive, send)
    socket.client_state = socket.application_state = WebSocketState.CONNECTED
    names = ModelNames(chat="tiny", transcription="ears", speech="mouth", vad="detector")
    deps = ApiDependencies(models=Models())
    serving = connection.Connection(socket, deps, Slow(), Configuration(names=names), Listener())
    closed = asyncio.Event()
    whole = serving.session.aclose

    async def aclose() -> None:
        await whole()
        closed.set()

    serving.session.aclose = aclose  # type: ignore[method-assign]
    before = asyncio.all_tasks()
    session = asyncio.create_task(serving.serve())
    await asyncio.sleep(0.01)
    session.cancel()
    await stubborn.wait()
    session.cancel()
    ends.set()
    with pytest.raises(asyncio.CancelledError):
        await session
    assert closed.is_set()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


async def test_a_draining_service_ends_sessions_that_are_quiet_and_lets_answers_end() -> None:
    async with world() as service, service.client() as quiet, service.client() as busy:
        service.models.write_on.clear()
        await busy.say()
        await busy.until("response.created")
        service.deps.requests.begin_drain()
        assert (await quiet.until("error"))["error"]["code"] == "shutting_down"
        service.models.write_on.set()
        assert (await busy.until("response.done"))["response"]["status"] == "completed"
        assert (await busy.until("error"))["error"]["code"] == "shutting_down"
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{service.url}/v1/realtime", proxy=None)
        assert refused.value.response.status_code == 503


async def test_many_turns_leave_nothing_behind() -> None:
    """Objects per turn, after the conversation has reached its bound."""
    models = DoubleModels(context=150, spoken_s=0.0005)
    async with world(models) as service, service.client() as client:
        tasks, kept = [], []
        for _ in range(30):
            await client.say()
            await client.until("response.done")
            client.events.clear()
            models.transcribed.clear()
            tasks.append(len(asyncio.all_tasks()))
            gc.collect()
            # By type: isinstance asks objects for their class, and some import what they stand for when asked.
            kept.append(sum(issubclass(type(one), (Item, Answer, Response)) for one in gc.get_objects()))
    assert max(tasks[10:]) <= max(tasks[:10])
    assert max(kept[15:]) <= max(kept[:15])
    assert all(len(messages) <= 30 for messages in models.asked)


async def test_a_detector_that_fails_ends_the_session_and_says_why() -> None:
    models = DoubleModels()

    async def broken(samples: bytes, state: bytes) -> Any:
        raise EngineFault("The detector is gone.")

    models.probabilities = broken  # type: ignore[method-assign]
    async with world(models) as service, service.client() as client:
        await client.say()
        assert (await client.until("error"))["error"]["message"] == "The detector is gone."
        with pytest.raises(ConnectionClosed):
            await client.until("never")


async def test_a_session_that_drains_ends_when_its_answer_is_cancelled() -> None:
    async with world() as service, service.client() as client:
        service.models.write_on.clear()
        await client.say()
        await client.until("response.created")
        service.deps.requests.begin_drain()
        await client.send("response.cancel")
        done = (await client.until("response.done"))["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        assert (await client.until("error"))["error"]["code"] == "shutting_down"
