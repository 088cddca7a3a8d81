"""`edgewise transcribe`: what is said in a recording, by the running service."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json
from edgewise.cli.service_client import CallerKey, Url, connect
from edgewise.core.errors import InvalidRequest
from edgewise.core.files import translate_os_errors

TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"


class Form(str, Enum):
    """How the text is shown."""

    TEXT = "text"
    SRT = "srt"
    VTT = "vtt"


def transcribe(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="WAV, FLAC, MP3, Ogg, M4A, MP4, WebM, AAC or AIFF.")
    ],
    model: Annotated[str | None, typer.Option(help="A model for it; by default the first that is installed.")] = None,
    language: Annotated[str | None, typer.Option(help="Code of what is spoken, as `de`; found out without.")] = None,
    prompt: Annotated[str | None, typer.Option(help="What the text could have begun with: names and style.")] = None,
    form: Annotated[Form, typer.Option("--format", help="Text, or subtitles.")] = Form.TEXT,
    words: Annotated[
        bool, typer.Option("--words", help="Times of words: a line or a subtitle for each, or `words` in the JSON.")
    ] = False,
    translate: Annotated[bool, typer.Option(help="Write English, whatever is spoken.")] = False,
    url: Url = None,
    key: CallerKey = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Write down what is said in a recording."""
    if words and translate:
        raise InvalidRequest("`--words` is for what is said: a translation's words are not spoken. Leave one out.")
    with translate_os_errors("read", file):
        content = file.read_bytes()
    fields: dict[str, Any] = {"model": model, "language": language, "prompt": prompt}
    listed = words and form is Form.TEXT
    fields["response_format"] = "verbose_json" if as_json or listed else form.value
    if words:
        fields["timestamp_granularities[]"] = ["word", "segment"] if as_json else ["word"]
    given = {name: value for name, value in fields.items() if value is not None}
    with connect(url, key, config) as client:
        answer = client.send_file(TRANSLATIONS if translate else TRANSCRIPTIONS, "file", file.name, content, given)
    if as_json:
        print_json(answer.json())
    elif listed:
        for word in answer.json()["words"]:
            typer.echo(f"{word['start']:9.2f} {word['end']:9.2f}  {word['word']}")
    else:
        typer.echo(answer.text, nl=False)
