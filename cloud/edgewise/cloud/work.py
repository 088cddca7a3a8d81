"""What a job asks for, checked and in the engine's terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from edgewise.core.errors import InvalidRequest, ModelNotFound, UnknownField
from edgewise.engine.pictures.request import DiffuseParams
from edgewise.engine.request import SamplingParams
from edgewise.models.catalog import member_for_role
from edgewise.models.manifest import Role
from edgewise.wire.messages import DiffuseWork, GenerateWork, Work

ParamsT = TypeVar("ParamsT", SamplingParams, DiffuseParams)

_ADAPTERS: Mapping[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (SamplingParams, DiffuseParams)}
_MEDIA = frozenset({"image", "mask", "latents"})


def names_of(work: Work) -> tuple[str, ...]:
    """What its model may be called here: as it is asked for, then the member that is meant where that is the name of a set."""
    role: Role = "diffusion" if isinstance(work, DiffuseWork) else "llm"
    try:
        return tuple(dict.fromkeys((work.model, member_for_role(work.model, role))))
    except ModelNotFound:  # the set has none for this kind of work
        return (work.model,)


def check_work(work: Work) -> None:
    """Refuse at the door what could never run.

    Raises:
        InvalidRequest: A parameter is missing, unknown or of the wrong type, or there is no prompt.
    """
    if isinstance(work, DiffuseWork):
        diffuse_params(work)
        return
    if not work.prompt and not work.text:
        raise InvalidRequest("'prompt' is empty: at least one token is needed, or a text.", param="work.prompt")
    sampling_params(work)


def sampling_params(work: GenerateWork) -> SamplingParams:
    """How tokens are drawn. Raises `InvalidRequest`."""
    return _read(SamplingParams, work.sampling, "work.sampling")


def diffuse_params(work: DiffuseWork, image: bytes | None = None, mask: bytes | None = None) -> DiffuseParams:
    """What is to be drawn. Raises `InvalidRequest`."""
    for name in _MEDIA & set(work.params):
        raise InvalidRequest(f"'{name}' is no parameter of a job: media travel as blobs.", param=f"work.params.{name}")
    values = {**work.params, "image": image, "mask": mask, "latents": work.want == "latents"}
    return _read(DiffuseParams, values, "work.params")


def first_problem(error: ValidationError, where: str = "") -> InvalidRequest:
    """What is wrong first, named by its path below `where`."""
    wrong = error.errors(include_url=False, include_input=False)[0]
    name = ".".join([*([where] if where else []), *(str(part) for part in wrong["loc"])])
    return InvalidRequest(f"'{name}': {wrong['msg']}.", param=name)


def _read(kind: type[ParamsT], values: dict[str, Any], where: str) -> ParamsT:
    unknown = sorted(set(values) - {field.name for field in fields(kind)})
    if unknown:
        raise UnknownField(f"'{where}' has the unknown field '{unknown[0][:80]}'.", param=f"{where}.{unknown[0][:80]}")
    for name, value in values.items():
        if not _fits(value, 64 if name == "seed" else 53):
            raise InvalidRequest(f"'{name}' has a number that is far out of its range.", param=f"{where}.{name}")
    try:
        params: ParamsT = _ADAPTERS[kind].validate_python(values)
    except ValidationError as error:
        raise first_problem(error, where) from error
    return params


def _fits(value: Any, bits: int) -> bool:
    """Whether no whole number in it is larger than what travels to an engine. Keys of maps may be digits."""
    if isinstance(value, dict):
        return all(_fits(key, bits) and _fits(one, bits) for key, one in value.items())
    if isinstance(value, list | tuple):
        return all(_fits(one, bits) for one in value)
    if isinstance(value, str) and value.lstrip("-").isdecimal():
        return len(value) <= 20
    return not isinstance(value, int) or abs(value) < 2**bits
