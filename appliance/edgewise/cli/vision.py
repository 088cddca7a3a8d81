"""`edgewise vision`: what the models of the running service see in a picture."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated, Any

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table
from edgewise.cli.service_client import CallerKey, Url, connect
from edgewise.core.files import translate_os_errors

app = typer.Typer(name="vision", help="Labels and text of pictures.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="PNG, JPEG, WebP or GIF.")]
Model = Annotated[str | None, typer.Option(help="A model for it; by default the first that is installed.")]
Frame = Annotated[int | None, typer.Option(min=0, help="Which frame of an animation, from 0.")]


@app.command()
def classify(
    file: File,
    model: Model = None,
    top: Annotated[int | None, typer.Option(min=1, help="How many labels.")] = None,
    frame: Frame = None,
    url: Url = None,
    key: CallerKey = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """What a photo shows: the likeliest labels."""
    body = _body(file, model=model, top=top, frame=frame)
    with connect(url, key, config) as client:
        answer = client.post("/edgewise/v1/vision/classify", body)
    if as_json:
        print_json(answer)
        return
    print_table(
        ("LABEL", "SCORE", "NAMES"), [(one["name"], f"{one['score']:.1%}", one["names"]) for one in answer["labels"]]
    )


@app.command()
def ocr(
    file: File,
    model: Model = None,
    frame: Frame = None,
    url: Url = None,
    key: CallerKey = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """The text in a picture, one line of it on each line."""
    with connect(url, key, config) as client:
        answer = client.post("/edgewise/v1/vision/ocr", _body(file, model=model, frame=frame))
    if as_json:
        print_json(answer)
        return
    for line in answer["lines"]:
        typer.echo(line["text"])


def _body(file: Path, **fields: Any) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if value is not None}
    return {"image": picture_url(file), **given}


def picture_url(file: Path) -> str:
    """A data URL. What is in the file, the service says: the type in the URL is not looked at."""
    with translate_os_errors("read", file):
        content = base64.b64encode(file.read_bytes()).decode()
    return f"data:application/octet-stream;base64,{content}"
