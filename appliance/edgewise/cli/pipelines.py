"""`edgewise pipelines`: which there are, checking a file, running one."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.cli.service_client import CallerKey, Url, connect
from edgewise.core.errors import InvalidRequest
from edgewise.core.files import atomic_write, translate_os_errors

app = typer.Typer(name="pipelines", help="Pipelines: several stages that answer one request.", no_args_is_help=True)
PIPELINES = "/edgewise/v1/pipelines"


@app.command("list")
def list_pipelines(url: Url = None, key: CallerKey = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Pipelines that the running service can run, and files that are wrong."""
    with connect(url, key, config) as client:
        report = client.get(PIPELINES)
    if as_json:
        print_json(report)
        return
    print_table(("PIPELINE", "INPUTS", "STAGES", "FROM", "WHAT IT DOES"), [row(one) for one in report["data"]])
    for fault in report["faults"]:
        say(fault)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="TOML file of a pipeline.")],
    as_json: AsJson = False,
) -> None:
    """Check a file without a service and without running anything."""
    from edgewise.api.deps import ApiDependencies
    from edgewise.api.pipelines.routes import stage_kinds
    from edgewise.pipeline.chains.load import read_file, show_pipeline
    from edgewise.pipeline.model import Models

    pipeline = show_pipeline(read_file(file, stage_kinds(ApiDependencies(models=Models()))))
    if as_json:
        print_json(pipeline)
    else:
        say(f"{file}: {pipeline['name']} is right: {' -> '.join(stage['name'] for stage in pipeline['stages'])}")


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="A pipeline, as `edgewise pipelines list` shows it.")],
    values: Annotated[list[str] | None, typer.Option("--input", "-i", help="NAME=TEXT, or NAME=@FILE.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for pictures.")] = Path(),
    seed: Annotated[int | None, typer.Option(min=0, help="For the same answer again.")] = None,
    url: Url = None,
    key: CallerKey = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline: prints its texts, saves its pictures and prints their paths."""
    body = {"input": inputs_of(values or []), **({} if seed is None else {"seed": seed})}
    with connect(url, key, config) as client:
        answer = client.post(f"{PIPELINES}/{quote(name, safe='')}", body)
    if as_json:
        print_json(answer)
        return
    for stage, output in answer["output"].items():
        for line in shown(stage, output, f"{name}-{stage}", out):
            typer.echo(line)


def inputs_of(values: Sequence[str]) -> dict[str, str]:
    """Inputs from the command line. Raises `InvalidRequest` or `StorageError`, naming the option or the file."""
    found: dict[str, str] = {}
    for value in values:
        name, separator, text = value.partition("=")
        if not separator or not name:
            raise InvalidRequest(f"--input {value[:80]!r}: write NAME=TEXT, or NAME=@FILE.", param="input")
        if text.startswith("@"):
            path = Path(text[1:])
            try:
                with translate_os_errors("read", path):
                    text = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidRequest(
                    f"--input {name}: {path} cannot be read as text ({error}).", param="input"
                ) from error
        found[name] = text
    return found


def shown(stage: str, output: Mapping[str, Any], stem: str, out: Path) -> list[str]:
    """What is printed of one output: its text, or the paths of its pictures, which are saved."""
    if "text" in output:
        return [str(output["text"])]
    paths = []
    for number, picture in enumerate(output["pictures"]):
        path = out / f"{stem}-{number}.png"
        atomic_write(path, base64.b64decode(picture["b64_json"]))
        paths.append(f"{path} ({stage})")
    return paths


def row(pipeline: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table; inputs that must be given have a star."""
    inputs = ", ".join(f"{name}*" if one["required"] else name for name, one in pipeline["inputs"].items())
    stages = " -> ".join(stage["name"] for stage in pipeline["stages"])
    return pipeline["name"], inputs, stages, pipeline["source"], " ".join(pipeline["description"].split())
