"""From a name to what is read of a model's files, whatever the model is for."""

from __future__ import annotations

from edgewise.core.modality import Modality, modality_of_role
from edgewise.core.settings import Settings
from edgewise.engine.machine import Machine
from edgewise.models.manifest import Role
from edgewise.models.store import Store
from edgewise.serving.adapters import base_of, config_of
from edgewise.serving.encoders import ENCODER_ROLES, ReadEncoder, read_encoder
from edgewise.serving.listening import ReadListener, read_listener
from edgewise.serving.pictures import ReadPictures, read_pictures
from edgewise.serving.served import ReadModel, read_model

AnyRead = ReadModel | ReadPictures | ReadEncoder | ReadListener


def read_any(settings: Settings, store: Store, name: str, machine: Machine) -> tuple[AnyRead, Modality]:
    """By what the model is for, and what it serves. Raises what `read_model` and its like raise."""
    role = store.manifest(base_of(name)).info.role
    return _read_as(role, settings, store, name, machine), modality_of_role(role)


def _read_as(role: Role, settings: Settings, store: Store, name: str, machine: Machine) -> AnyRead:
    if role in ENCODER_ROLES:
        return read_encoder(settings, store, name, machine)
    if role == "diffusion":
        return read_pictures(settings, store, name, machine)
    if role == "speech-to-text":
        return read_listener(settings, store, name, machine)
    return read_model(
        settings, store, base_of(name), machine, lambda config: config_of(name, config, cuda=machine.cuda)
    )
