"""`edgewise voice`: talk with the running service."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.cli.service_client import CallerKey, Url
from edgewise.core.errors import NotFound
from edgewise.core.settings import load_settings

if TYPE_CHECKING:
    from edgewise.cli.voice_sound import Loudspeaker, Sink, Source
    from edgewise.cli.voice_talk import TalkOptions, Watcher

_WAKE = "Answer only what begins with this word, as it is transcribed: everything that is said is heard and transcribed for that."


def voice(
    list_devices: Annotated[bool, typer.Option("--list-devices", help="Show sound devices and end.")] = False,
    input_device: Annotated[
        str | None, typer.Option("--input", metavar="DEVICE", help="Microphone, by number or part of its name.")
    ] = None,
    output_device: Annotated[
        str | None, typer.Option("--output", metavar="DEVICE", help="Speaker, by number or part of its name.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="WAV file to speak instead of a microphone.")] = None,
    out: Annotated[Path | None, typer.Option(help="WAV file for the answers instead of a speaker.")] = None,
    wake: Annotated[str | None, typer.Option(metavar="WORD", help=_WAKE)] = None,
    once: Annotated[bool, typer.Option("--once", help="End after the first answer.")] = False,
    interrupt: Annotated[bool, typer.Option(help="Whether speech ends an answer.")] = True,
    cancel_echo: Annotated[
        bool, typer.Option(help="Whether the speaker's sound is taken out of what the microphone hears.")
    ] = True,
    model: Annotated[str | None, typer.Option(help="Language model; default: the first that converses.")] = None,
    transcription_model: Annotated[str | None, typer.Option(help="Model that hears.")] = None,
    speech_model: Annotated[str | None, typer.Option(help="Model that speaks.")] = None,
    voice_name: Annotated[str | None, typer.Option("--voice", help="One of the speech model's voices.")] = None,
    language: Annotated[str | None, typer.Option(help="Language that is spoken, as a code such as de.")] = None,
    system: Annotated[str | None, typer.Option(help="Instructions for the language model.")] = None,
    url: Url = None,
    key: CallerKey = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Talk with the running service: speak, and hear it answer. Ctrl-C ends."""
    if list_devices:
        _show_devices(as_json)
        return
    from edgewise.cli.voice_talk import TalkOptions

    if wake is not None and not wake.strip():
        raise typer.BadParameter("give a word", param_hint="--wake")
    settings = load_settings(config).settings
    where = _Where(
        url=url or settings.base_url,
        key=key,
        trust=None if url else settings.tls.cert,
        parameters={"model": model, "transcription_model": transcription_model, "speech_model": speech_model},
    )
    options = TalkOptions(session=_session(system, voice_name, language), wake=wake, once=once, interrupt=interrupt)
    asyncio.run(_run(where, options, _Ends(file, out, input_device, output_device, cancel_echo), as_json))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    url: str
    key: str | None
    trust: Path | None
    parameters: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where sound comes from and goes to: a file, else a device."""

    file: Path | None
    out: Path | None
    input: str | None
    output: str | None
    cancel_echo: bool


def _session(system: str | None, voice_name: str | None, language: str | None) -> dict[str, Any]:
    """Fields of `session.update`."""
    audio: dict[str, Any] = {}
    if voice_name is not None:
        audio["output"] = {"voice": voice_name}
    if language is not None:
        audio["input"] = {"transcription": {"language": language}}
    return {**({"instructions": system} if system else {}), **({"audio": audio} if audio else {})}


async def _run(where: _Where, options: TalkOptions, ends: _Ends, as_json: bool) -> None:
    from edgewise.cli.voice_client import open_session
    from edgewise.cli.voice_files import FileSink, write_wav
    from edgewise.cli.voice_sound import Loudspeaker, Microphone
    from edgewise.cli.voice_talk import Talk
    from edgewise.cli.voice_view import summary_data, summary_text

    with contextlib.ExitStack() as stack:
        source, sink = _open_ends(ends, stack)
        if ends.cancel_echo and isinstance(source, Microphone) and isinstance(sink, Loudspeaker):
            source, options = _without_echo(source, sink, options)
        async with open_session(where.url, key=where.key, trust=where.trust, parameters=where.parameters) as client:
            names = client.created["session"]
            if not as_json:
                heard, spoken = names["audio"]["input"]["transcription"]["model"], names["audio"]["output"]["model"]
                say(f"Talking to {names['model']}, heard by {heard}, spoken by {spoken}. {_hint(options, ends)}")
            watcher = _view(as_json, stack)
            talk = Talk(client, source, sink, options, watcher)
            watcher.event(client.created)
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, talk.stop)
            summary = await talk.run()
    if ends.out is not None and isinstance(sink, FileSink):
        write_wav(ends.out, sink.samples)
    if as_json:
        typer.echo(json.dumps(summary_data(summary)))
    else:
        say(summary_text(summary))


def _hint(options: TalkOptions, ends: _Ends) -> str:
    if ends.file is not None:
        return f"Speaking {ends.file}."
    return f"Begin with '{options.wake}'; Ctrl-C ends." if options.wake else "Speak; Ctrl-C ends."


def _open_ends(ends: _Ends, stack: contextlib.ExitStack) -> tuple[Source, Sink]:
    """Devices are closed with the stack. Raises `NoSound`, `NotFound`, `InvalidRequest`."""
    from edgewise.cli.voice_files import FileSink, FileSource
    from edgewise.cli.voice_sound import Loudspeaker, Microphone, find_device

    source: Source
    sink: Sink
    if ends.file is not None:
        source = FileSource(ends.file)
    else:
        source = stack.enter_context(contextlib.closing(Microphone(find_device(ends.input, "input"))))
    if ends.out is not None:
        if not ends.out.absolute().parent.is_dir():
            raise NotFound(f"There is no folder {ends.out.absolute().parent} for --out.")
        sink = FileSink()
    else:
        sink = stack.enter_context(contextlib.closing(Loudspeaker(find_device(ends.output, "output"))))
    return source, sink


def _without_echo(source: Source, sink: Loudspeaker, options: TalkOptions) -> tuple[Source, TalkOptions]:
    """The microphone without the speaker's sound; where that cannot be had, it is not heard while an answer is played."""
    from edgewise.cli.voice_echo import EchoFree, make_canceller

    canceller = make_canceller(sink.rate)
    if canceller is None:
        say(
            "The package livekit is not installed (`pip install 'edgewise[voice]'`), so the speaker's sound cannot be taken out "
            "of the microphone's: nobody is heard while an answer is played. With a headset use --no-cancel-echo."
        )
        return source, replace(options, interrupt=False)
    sink.given = canceller.played
    return EchoFree(source, canceller), options


def _view(as_json: bool, stack: contextlib.ExitStack) -> Watcher:
    from edgewise.cli.voice_view import JsonView, LiveView, PlainView

    if as_json:
        return JsonView()
    return stack.enter_context(LiveView()) if sys.stdout.isatty() else PlainView()


def _show_devices(as_json: bool) -> None:
    from edgewise.cli.voice_sound import list_devices

    devices = list_devices()
    if as_json:
        print_json([asdict(one) for one in devices])
        return
    if not devices:
        say("This machine has no sound devices, or its sound server does not run. Without any, use --file and --out.")
    print_table(
        ("DEVICE", "NAME", "SYSTEM", "IN", "OUT", "RATE", "DEFAULT"),
        [
            (one.index, one.name, one.system, one.inputs, one.outputs, one.rate, ", ".join(one.default))
            for one in devices
        ],
    )
