"""`edgewise speak`: have the running service speak a text, into a file or to the loudspeaker."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json
from edgewise.cli.service_client import CallerKey, Url, connect
from edgewise.core.errors import InvalidRequest
from edgewise.core.files import translate_os_errors
from edgewise.models.media.sound_out import PCM_RATE, SOUND_FORMATS

SPEECH = "/v1/audio/speech"
_RECEIPT = "X-Edgewise-Receipt"
_SAMPLE_BYTES = 2


def speak(
    text: Annotated[str, typer.Argument(help="What to say; - reads it from standard input.")],
    out: Annotated[
        Path | None, typer.Option(help=f"File to write; its ending says the format: {', '.join(SOUND_FORMATS)}.")
    ] = None,
    play: Annotated[
        bool, typer.Option("--play", help="Play it on this machine's loudspeaker as it is spoken.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="A model for it; by default the first that is installed.")] = None,
    voice: Annotated[str | None, typer.Option(help="One of the model's voices; by default its first.")] = None,
    speed: Annotated[float | None, typer.Option(min=0.25, max=4.0, help="1 is the voice's own.")] = None,
    url: Url = None,
    key: CallerKey = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Speak a text, into a file (--out) or aloud (--play)."""
    if (out is None) == (not play):
        raise InvalidRequest("Say where the speech shall go: --out FILE, or --play.", param="out")
    body = {"input": sys.stdin.read() if text == "-" else text, "model": model, "voice": voice, "speed": speed}
    if out is None:
        device = _Loudspeaker()
        with connect(url, key, config) as client:
            device.play(client.pieces(SPEECH, {**body, "response_format": "pcm"}))
        return
    body["response_format"] = _format(out)
    with connect(url, key, config, {_RECEIPT: "header"}) as client:
        answer = client.fetch(SPEECH, body)
    with translate_os_errors("write", out):
        out.write_bytes(answer.content)
    _report(json.loads(answer.headers[_RECEIPT]), out, as_json=as_json)


def _format(out: Path) -> str:
    ending = out.suffix.lower().lstrip(".")
    if ending not in SOUND_FORMATS:
        raise InvalidRequest(
            f"'{out.name}' does not end in a format that is written here: use {', '.join(f'.{one}' for one in SOUND_FORMATS)}.",
            param="out",
        )
    return ending


def _report(receipt: Mapping[str, Any], out: Path, *, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(out), **receipt})
        return
    stage = receipt["stages"][0]
    typer.echo(f"{out}: {stage['speech_ms'] / 1e3:.1f} s, spoken by {receipt['model']} ({stage['voice']})")
    for warning in receipt["warnings"]:
        typer.echo(warning, err=True)


class _Loudspeaker:
    """The system's default one, through PortAudio."""

    def __init__(self) -> None:
        from edgewise.cli.voice_sound import load_sounddevice

        self._sounddevice = load_sounddevice("write a file with --out")

    def play(self, pieces: Iterator[bytes]) -> None:
        """Signed 16-bit samples of one channel, `PCM_RATE` a second. Returns when all of it has been heard."""
        from edgewise.cli.voice_sound import NoSound

        try:
            with self._sounddevice.RawOutputStream(samplerate=PCM_RATE, channels=1, dtype="int16") as stream:
                rest = b""
                for piece in pieces:  # they end where the network cut them, in the middle of a sample too
                    rest += piece
                    whole = len(rest) // _SAMPLE_BYTES * _SAMPLE_BYTES
                    stream.write(rest[:whole])
                    rest = rest[whole:]
        except self._sounddevice.PortAudioError as error:
            raise NoSound(f"The loudspeaker cannot be used ({error}): write a file with --out instead.") from error
