"""Recordings for a language model without ears: a model for speech writes down what is said, and that is its prompt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from edgewise.core.errors import InvalidRequest, ModelNotFound
from edgewise.models.media.process import MediaProcess
from edgewise.models.media.sound_limits import sound_bytes
from edgewise.pipeline.attachments import Attachment
from edgewise.pipeline.held import Hold
from edgewise.pipeline.listener import ServedListener
from edgewise.pipeline.look import OpensEncoders
from edgewise.pipeline.model import ServedEncoder
from edgewise.pipeline.receipts import LookReceipt, MediumReceipt
from edgewise.pipeline.task import Task
from edgewise.pipeline.transcribe.run import TranscribeRun, start_transcription
from edgewise.pipeline.transcribe.task import TranscribeTask


class OpensListeners(OpensEncoders, Protocol):
    """The part of `pipeline.model.Models` that is needed here."""

    async def open_listener(self, name: str | None, *, keep_alive_s: float | None = None) -> ServedListener: ...


@dataclass(frozen=True, slots=True)
class Ears:
    """The installed models that hear: one for speech, and where there is one, a detector."""

    listener: ServedListener
    detector: ServedEncoder | None


@dataclass(frozen=True, slots=True)
class Said:
    """A recording in words.

    Attributes:
        text: For the prompt.
        look: Who heard it.
        medium: What of it was heard.
        warnings: Sentences for the receipt.
    """

    text: str
    look: LookReceipt
    medium: MediumReceipt
    warnings: tuple[str, ...]


async def ears(models: OpensListeners) -> Ears | None:
    """None where no model for speech is installed."""
    try:
        listener = await models.open_listener(None)
    except ModelNotFound:
        return None
    return Ears(listener, await detector(models))


async def detector(models: OpensEncoders) -> ServedEncoder | None:
    """The first model that tells speech from silence; None where none is installed."""
    try:
        return await models.open_encoder("vad", None)
    except ModelNotFound:
        return None


async def decoded(
    process: MediaProcess, hold: Hold, data: bytes, param: str, *, max_bytes: int, max_seconds: float
) -> tuple[bytes, tuple[str, ...]]:
    """Samples as a transcription takes them, and what the receipt says of a file that is not as it should be.

    Args:
        hold: Of the request: room for what the header says is booked in it while it is decoded, and then samples alone.

    Raises:
        InvalidRequest: It cannot be read, or is beyond a limit.
        PayloadTooLarge, OutOfMemory: There is no room for it; see `Hold.add`.
    """
    limits: dict[str, Any] = {"max_bytes": max_bytes, "max_seconds": max_seconds}
    needs, _ = await process.turn(lambda: process.decode("needs-audio", data, limits, param=param))
    found: dict[str, Any] = {"more": True}
    seconds = needs["seconds"]
    while "more" in found:  # than the header says, or than was thought where it says nothing
        options = {**limits, "booked_seconds": seconds}
        work = partial(process.decode, "audio", data, options, param=param)
        found, samples = await hold.decoding(process, sound_bytes(seconds), param, work)
        seconds = min(max_seconds, 2 * seconds)
    hold.add(len(samples), param)
    notes = []
    if found["damaged"]:
        notes.append(f"Damaged packets of '{param}' were left out: {found['damaged']}.")
    if found["claimed"] is not None and found["seconds"] < found["claimed"] - 0.5:
        notes.append(f"'{param}' says it lasts {found['claimed']:.1f} s, and {found['seconds']:.1f} s are there.")
    return samples, tuple(notes)


async def write_down(
    task: Task, models: Ears, index: int, attachment: Attachment, samples: bytes, notes: tuple[str, ...]
) -> Said:
    """A recording in words. A caller who leaves cancels it.

    Args:
        index: Of the recording in its request.
        notes: What is to be said of its file.

    Raises:
        QueueFull, EngineUnavailable, OutOfMemory, DeadlineExceeded: As of every engine.
    """
    request = TranscribeTask(
        id=f"{task.id}/listen-{index}",
        model=models.listener,
        detector=models.detector,
        samples=samples,
        salt=task.salt,
        key=task.key,
        priority=task.priority,
        deadline_s=task.deadline_s,
        privacy=task.privacy,
    )
    run = await start_transcription(request, segmented=False)
    try:
        text = "".join([heard.text async for heard in run.chunks()]).strip()
    finally:
        await run.aclose()
    said = f'A recording. Said in it: "{text}"' if text else "A recording in which nobody speaks."
    return Said(said, _receipt(attachment, run), heard_receipt(attachment.param, run.seconds, 0), notes)


def _receipt(attachment: Attachment, run: TranscribeRun) -> LookReceipt:
    receipt = run.receipt()
    stage = receipt.stages[-1]
    return LookReceipt(
        encoders=tuple(one for each in receipt.stages for one in each.encoders),
        stage="listen",
        where="local",
        why=f"The model that is asked has no ears: {run.model_name} heard it.",
        numeric_class=stage.numeric_class,
        precision=stage.precision,
        queued_ms=stage.queued_ms,
        restarts=stage.restarts,
        preemptions=stage.preemptions,
        model=run.model_name,
        of=attachment.param,
        compute_ms=receipt.total_ms,
    )


def heard_receipt(param: str, seconds: float, tokens: int) -> MediumReceipt:
    """Of a recording, which has no pixels."""
    return MediumReceipt(
        of=param,
        kind="audio",
        width=0,
        height=0,
        seen_width=0,
        seen_height=0,
        frames=0,
        every_s=None,
        seconds=round(seconds, 3),
        tokens=tokens,
        bounded_by=None,
    )


def nobody_listens(model: str, attachment: Attachment) -> InvalidRequest:
    return InvalidRequest(
        f"'{attachment.param}' is a recording, and the model '{model}' has no ears: have a model write down what is said "
        "(`edgewise models pull whisper-base`), or install a model that hears.",
        param=attachment.param,
    )
