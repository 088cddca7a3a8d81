"""Pipelines from TOML files: checked as a whole before anything runs. Every message names file, key and remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from edgewise.core.errors import ConfigError, NotFound
from edgewise.core.toml import parse_toml
from edgewise.pipeline.chains.kinds import Kinds, Medium
from edgewise.pipeline.chains.spec import PART, PipelineSpec, StageSpec, references

MAX_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline that can run.

    Attributes:
        order: Its stages, each after those that it reads.
        output: Names of the stages whose outputs are the answer.
        source: Where it comes from: a path, or "shipped".
    """

    spec: PipelineSpec
    order: tuple[StageSpec, ...]
    output: tuple[str, ...]
    source: str


def read_pipeline(text: str, source: str, kinds: Kinds) -> Pipeline:
    """Raises `ConfigError`."""
    try:
        spec = PipelineSpec.model_validate(parse_toml(text))
    except ValidationError as error:
        raise ConfigError(f"{source}: {_first(error)}") from error
    except ValueError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from error
    _Check(spec, source, kinds).run()
    order = tuple(_ordered(spec, source))
    read = {name for stage in spec.stages for name in _needs(spec, stage)}
    return Pipeline(spec, order, spec.output or tuple(stage.name for stage in order if stage.name not in read), source)


def read_file(path: Path, kinds: Kinds) -> Pipeline:
    """Raises `ConfigError`."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes, which no pipeline needs.")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}).") from error
    return read_pipeline(text, str(path), kinds)


class Pipelines:
    """Those that ship with the package and those of a folder, read anew at every look: a change needs no restart.

    A file of the folder goes before a shipped pipeline of the same name.
    """

    def __init__(self, folder: Path | None, kinds: Kinds) -> None:
        self._folder = folder
        self.kinds = kinds

    def __repr__(self) -> str:
        return f"Pipelines({self._folder}, kinds={sorted(self.kinds)})"

    def all(self) -> tuple[dict[str, Pipeline], list[ConfigError]]:
        """Every pipeline by its name, and what is wrong with files that hold none. Reads files."""
        found: dict[str, Pipeline] = {}
        faults: list[ConfigError] = []
        for source, read in self._sources():
            try:
                pipeline = read()
            except ConfigError as error:
                faults.append(error)
                continue
            other = found.get(pipeline.spec.name)
            if other is not None and other.source != "shipped":
                faults.append(
                    ConfigError(f"{source}: name: '{pipeline.spec.name}' is taken by {other.source}; choose another.")
                )
                continue
            found[pipeline.spec.name] = pipeline
        return found, faults

    def get(self, name: str) -> Pipeline:
        """Raises `NotFound` naming those that exist; `ConfigError` for one whose file is wrong. Reads files."""
        found, faults = self.all()
        if name in found:
            return found[name]
        for fault in faults:
            if f"{name}.toml: " in fault.message:
                raise fault
        known = ", ".join(f"'{one}'" for one in sorted(found)) or "none"
        raise NotFound(f"There is no pipeline '{name[:80]}'. Those that can run: {known}.", param="name")

    def _sources(self) -> Iterator[tuple[str, Any]]:
        for entry in sorted(files("edgewise.pipeline.chains").joinpath("shipped").iterdir(), key=lambda one: one.name):
            if entry.name.endswith(".toml"):
                text = entry.read_text(encoding="utf-8")
                yield "shipped", lambda text=text: read_pipeline(text, "shipped", self.kinds)
        for path in sorted(self._folder.glob("*.toml")) if self._folder is not None else ():
            yield str(path), lambda path=path: read_file(path, self.kinds)


class _Check:
    """What pydantic does not see: names, references, media, kinds."""

    def __init__(self, spec: PipelineSpec, source: str, kinds: Kinds) -> None:
        self._spec = spec
        self._source = source
        self._kinds = kinds
        self._media: dict[str, Medium] = {}

    def run(self) -> None:
        for number, stage in enumerate(self._spec.stages):
            key = f"stages.{number}"
            if stage.name in self._media or stage.name in self._spec.inputs or stage.name == PART:
                self._refuse(f"{key}.name", f"'{stage.name}' is taken; give the stage a name of its own")
            kind = self._kinds.get(stage.kind)
            if kind is None:
                known = ", ".join(sorted(self._kinds))
                self._refuse(
                    f"{key}.kind",
                    f"'{stage.kind}' has no back end in this build, which has {known}; leave the stage out",
                )
            self._media[stage.name] = kind.makes
        if PART in self._spec.inputs:
            self._refuse(f"inputs.{PART}", f"'{PART}' is what pieces are called; choose another name")
        for number, stage in enumerate(self._spec.stages):
            self._stage(f"stages.{number}", stage)
        for name in self._spec.output:
            if name not in self._media:
                self._refuse("output", f"there is no stage '{name}'; name one of {', '.join(self._media)}")

    def _stage(self, key: str, stage: StageSpec) -> None:
        kind = self._kinds[stage.kind]
        for field in stage.input:
            if field not in kind.fields:
                known = ", ".join(kind.fields)
                self._refuse(f"{key}.input.{field}", f"a stage of kind '{stage.kind}' reads {known}; use one of them")
        missing = [name for name, field in kind.fields.items() if field.required and name not in stage.input]
        if missing:
            self._refuse(f"{key}.input", f"'{missing[0]}' is missing; a stage of kind '{stage.kind}' needs it")
        for field, template in [("model", stage.model), *((f"input.{one}", text) for one, text in stage.input.items())]:
            self._template(key, stage, field, template)
        for name in stage.after:
            if name not in self._media:
                self._refuse(f"{key}.after", f"there is no stage '{name}'; name one of {', '.join(self._media)}")
        self._pieces(key, stage)
        try:
            kind.check(stage.input.keys(), stage.options)
        except ValidationError as error:
            self._refuse(f"{key}.options", _first(error))
        except ValueError as error:
            self._refuse(f"{key}.input", str(error))

    def _template(self, key: str, stage: StageSpec, field: str, template: str) -> None:
        try:
            names = references(template)
        except ValueError as error:
            self._refuse(f"{key}.{field}", str(error))
        reads: Medium = "text"
        if field != "model":
            reads = self._kinds[stage.kind].fields[field.removeprefix("input.")].reads
        for name in names:
            if name == PART and stage.over is None:
                self._refuse(f"{key}.{field}", f"${{{PART}}} stands for a piece; say with `over` and `each` of what")
            if name != PART and name not in self._media and name not in self._spec.inputs:
                known = ", ".join([*self._spec.inputs, *self._media])
                self._refuse(f"{key}.{field}", f"'${{{name}}}' is no input and no stage; there are {known}")
            if field == "model" and name not in self._spec.inputs:
                self._refuse(f"{key}.model", f"'${{{name}}}' is no input; a model is chosen before any stage runs")
            medium = self._media.get(name, "text")
            if medium != reads:
                self._refuse(
                    f"{key}.{field}",
                    f"it reads {reads}, and '{name}' is {medium}; put a stage between that makes one of the other",
                )
        if reads != "text" and (len(names) != 1 or template != f"${{{names[0]}}}"):
            self._refuse(f"{key}.{field}", f"it reads a {reads}: write one reference to a stage and nothing else")

    def _pieces(self, key: str, stage: StageSpec) -> None:
        if (stage.over is None) != (stage.each is None):
            self._refuse(f"{key}.over", "`over` and `each` belong together; give both or neither")
        if stage.over is None:
            if stage.fold or stage.tokens is not None:
                self._refuse(f"{key}.{'fold' if stage.fold else 'tokens'}", "it needs `over` and `each`")
            return
        if stage.over not in self._spec.inputs and self._media.get(stage.over) != "text":
            self._refuse(f"{key}.over", f"'{stage.over}' is neither an input nor a stage that makes text")
        if not any(PART in references(text) for text in stage.input.values()):
            self._refuse(f"{key}.input", f"no template has ${{{PART}}}; without it every piece is the same")
        if stage.each == "sentence" and (stage.fold or stage.tokens is not None):
            self._refuse(f"{key}.each", '`fold` and `tokens` are for pieces of tokens; set each = "tokens"')
        if stage.each == "tokens" and not self._kinds[stage.kind].splits:
            self._refuse(f"{key}.each", f"a stage of kind '{stage.kind}' counts no tokens; set each = \"sentence\"")

    def _refuse(self, key: str, why: str) -> NoReturn:
        raise ConfigError(f"{self._source}: {key}: {why}.")


def _needs(spec: PipelineSpec, stage: StageSpec) -> list[str]:
    """Stages that a stage reads or waits for."""
    names = [*stage.references(), *stage.after, *([] if stage.over is None else [stage.over])]
    return [name for name in dict.fromkeys(names) if name not in spec.inputs]


def _ordered(spec: PipelineSpec, source: str) -> Iterator[StageSpec]:
    """Stages, each after those that it needs; raises `ConfigError` for a cycle, naming it."""
    done: set[str] = set()
    path: list[str] = []

    def visit(stage: StageSpec) -> Iterator[StageSpec]:
        if stage.name in done:
            return
        if stage.name in path:
            cycle = " -> ".join([*path[path.index(stage.name) :], stage.name])
            raise ConfigError(f"{source}: stages: {cycle} go in a circle; take out one of the references.")
        path.append(stage.name)
        for name in _needs(spec, stage):
            yield from visit(spec.stage(name))
        path.pop()
        done.add(stage.name)
        yield stage

    for stage in spec.stages:
        yield from visit(stage)


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, with its key."""
    item = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{key}: unknown key; take it out"
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"{key}: {message[:1].lower()}{message[1:]}" if key else message


def show_pipeline(pipeline: Pipeline) -> Mapping[str, Any]:
    """What `GET /edgewise/v1/pipelines` says of one."""
    spec = pipeline.spec
    return {
        "name": spec.name,
        "description": spec.description,
        "source": pipeline.source,
        "inputs": {
            name: {"required": one.default is None, "default": one.default, "description": one.description}
            for name, one in spec.inputs.items()
        },
        "stages": [
            {"name": stage.name, "kind": stage.kind, "model": stage.model, "where": list(stage.where) or None}
            for stage in pipeline.order
        ],
        "output": list(pipeline.output),
        "privacy": spec.privacy,
    }
