"""What a session tells, as the events that OpenAI's clients read."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from edgewise.api.errors import error_body, error_type
from edgewise.core.errors import EdgewiseError
from edgewise.pipeline.voice.conversation import Item
from edgewise.pipeline.voice.protocols import (
    AudioDelta,
    Committed,
    Failed,
    ItemDropped,
    ItemTruncated,
    Response,
    ResponseBegan,
    ResponseEnded,
    SpeechStarted,
    SpeechStopped,
    TextDelta,
    Told,
    Transcribed,
    TranscriptionFailed,
)

Event = dict[str, Any]


def event(kind: str, **fields: Any) -> Event:
    return {"type": kind, "event_id": f"event_{uuid.uuid4().hex[:20]}", **fields}


def error_event(error: EdgewiseError, event_id: str | None = None) -> Event:
    """`event_id`: of the client's event that is refused."""
    return event("error", error={**error_body(error)["error"], "event_id": event_id})


def item_added(item: Item, previous_id: str | None) -> Iterator[Event]:
    """An item that is complete from its beginning."""
    shown = show_item(item)
    yield event("conversation.item.added", previous_item_id=previous_id, item=shown)
    yield event("conversation.item.done", previous_item_id=previous_id, item=shown)


def show_item(item: Item) -> Event:
    return {
        "id": item.id,
        "object": "realtime.item",
        "type": "message",
        "status": item.status,
        "role": item.role,
        "content": [_part(item)],
    }


def _part(item: Item) -> Event:
    if item.role == "assistant":
        return (
            {"type": "output_audio", "transcript": item.heard}
            if item.audio
            else {"type": "output_text", "text": item.text}
        )
    return {"type": "input_audio", "transcript": item.text} if item.audio else {"type": "input_text", "text": item.text}


def events_of(told: Told) -> Iterator[Event]:
    """The events that say the same."""
    if isinstance(told, (AudioDelta, TextDelta, ResponseBegan, ResponseEnded)):
        yield from _of_response(told)
    elif isinstance(told, SpeechStarted):
        yield event("input_audio_buffer.speech_started", audio_start_ms=told.at_ms, item_id=told.item_id)
    elif isinstance(told, SpeechStopped):
        cut = {"edgewise": {"cut": True}} if told.cut else {}
        yield event("input_audio_buffer.speech_stopped", audio_end_ms=told.at_ms, item_id=told.item_id, **cut)
    elif isinstance(told, Committed):
        yield event("input_audio_buffer.committed", previous_item_id=told.previous_id, item_id=told.item.id)
        yield event("conversation.item.added", previous_item_id=told.previous_id, item=show_item(told.item))
    elif isinstance(told, Transcribed):
        yield event(
            "conversation.item.input_audio_transcription.completed",
            item_id=told.item.id,
            content_index=0,
            transcript=told.heard.text,
            usage={"type": "duration", "seconds": round(told.heard.seconds, 3)},
            edgewise=told.heard.receipt,
        )
        yield event("conversation.item.done", previous_item_id=None, item=show_item(told.item))
    elif isinstance(told, TranscriptionFailed):
        yield event(
            "conversation.item.input_audio_transcription.failed",
            item_id=told.item.id,
            content_index=0,
            error=error_body(told.error)["error"],
        )
    elif isinstance(told, ItemDropped):
        why = "The conversation is longer than the model's context: its oldest turns are dropped."
        yield event("conversation.item.deleted", item_id=told.item_id, edgewise={"reason": why})
    elif isinstance(told, ItemTruncated):
        yield event(
            "conversation.item.truncated",
            item_id=told.item.id,
            content_index=0,
            audio_end_ms=int(told.item.end_ms or 0),
            edgewise={"transcript": told.item.heard},
        )
    else:
        assert isinstance(told, Failed)
        yield error_event(told.error)


_AT: Final[Mapping[str, int]] = {"output_index": 0, "content_index": 0}


def _of_response(told: AudioDelta | TextDelta | ResponseBegan | ResponseEnded) -> Iterator[Event]:
    response = told.response
    at = {"response_id": response.id, "item_id": response.item.id, **_AT}
    if isinstance(told, AudioDelta):
        yield event("response.output_audio.delta", **at, delta=base64.b64encode(told.samples).decode("ascii"))
    elif isinstance(told, TextDelta):
        kind = "output_text" if response.text_only else "output_audio_transcript"
        yield event(f"response.{kind}.delta", **at, delta=told.text)
    elif isinstance(told, ResponseBegan):
        yield event("response.created", response=show_response(response))
        item = {"response_id": response.id, "output_index": 0, "item": {**show_item(response.item), "content": []}}
        yield event("response.output_item.added", **item)
        yield event("conversation.item.added", previous_item_id=told.previous_id, item=item["item"])
        part = {"type": "text", "text": ""} if response.text_only else {"type": "audio", "transcript": ""}
        yield event("response.content_part.added", **at, part=part)
    else:
        yield from _ending(response, at)


def _ending(response: Response, at: Event) -> Iterator[Event]:
    text, shown = response.item.text, show_item(response.item)
    if response.text_only:
        yield event("response.output_text.done", **at, text=text)
    else:
        yield event("response.output_audio.done", **at)
        yield event("response.output_audio_transcript.done", **at, transcript=text)
    part = {"type": "text", "text": text} if response.text_only else {"type": "audio", "transcript": text}
    yield event("response.content_part.done", **at, part=part)
    yield event("response.output_item.done", response_id=response.id, output_index=0, item=shown)
    yield event("conversation.item.done", previous_item_id=None, item=shown)
    yield event("response.done", response=show_response(response))


def show_response(response: Response) -> Event:
    """OpenAI's response object, with our receipt."""
    running = response.status == "in_progress"
    return {
        "object": "realtime.response",
        "id": response.id,
        "status": response.status,
        "status_details": None if running else _details(response),
        "output": [] if running else [show_item(response.item)],
        "output_modalities": ["text"] if response.text_only else ["audio"],
        "usage": _usage(response),
        **({} if running else {"edgewise": _receipt(response)}),
    }


def _details(response: Response) -> Event:
    details: Event = {"type": response.status}
    if response.reason is not None:
        details["reason"] = response.reason
    if response.error is not None:
        error = response.error
        details["error"] = {"type": error_type(error.http_status), "code": error.code, "message": error.message}
    return details


def _usage(response: Response) -> Event | None:
    usage = response.usage
    if usage is None:
        return None
    cached = usage.cached_tokens or 0
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_token_details": {"text_tokens": usage.prompt_tokens, "audio_tokens": 0, "cached_tokens": cached},
        "output_token_details": {"text_tokens": usage.completion_tokens, "audio_tokens": 0},
    }


def _receipt(response: Response) -> Event:
    """Which models heard and wrote, and how the answer sounded; times in milliseconds."""
    made = response.speech_s > 0
    return {
        "transcription": response.transcription,
        "answer": response.receipt,
        "first_sound_ms": None if response.first_sound_s is None else round(response.first_sound_s * 1e3, 1),
        "speech_ms": round(response.speech_s * 1e3, 1),
        "real_time_factor": round(response.speak_s / response.speech_s, 4) if made else None,
        "worst_gap_ms": round(response.worst_gap_s * 1e3, 1),
        "heard_ms": None if response.item.end_ms is None else round(response.item.end_ms, 1),
        "unspoken_phrases": response.unspoken,
        "dropped_items": response.dropped,
    }
