"""Faces of models that only the cloud has: fetched once, checked by their hashes, kept in the state directory. See `wire.face`.

A folder for each, named by the model's digest, holds its files by their hash, and `face.json`, which is written last.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from edgewise.core.errors import BadModelFile, DigestMismatch, EngineFault, TemplateFailed
from edgewise.core.files import atomic_write, make_folder, translate_os_errors
from edgewise.core.log import get_logger
from edgewise.edge.offload.absent import AbsentEngine
from edgewise.models.files import ModelFiles
from edgewise.models.sampling import check_sampling
from edgewise.models.templates import load_template
from edgewise.models.tokenizer import load_tokenizer
from edgewise.pipeline.model import ServedModel
from edgewise.wire.face import Face, face_path
from edgewise.wire.messages import Capability

log = get_logger(__name__)

KEPT = 16
"""Faces on disk; the least recently fetched ones beyond that are removed."""

_RECORD = "face.json"
Fetch = Callable[[str], Awaitable[bytes]]
"""GETs a path of the cloud."""


class FaceStore:
    """Args:
    folder: Where they are kept; made when the first one is.
    fetch: How they are had.
    """

    def __init__(self, folder: Path, fetch: Fetch) -> None:
        self._folder = folder
        self._fetch = fetch

    async def known(self) -> Mapping[str, Face]:
        """Those that are here, by the model's name; of two of one name the latest."""
        return await asyncio.to_thread(self._known)

    async def get(self, digest: str) -> Face:
        """The face of a model, fetched if it is not here.

        Raises:
            LinkLost: It is not here, and the cloud cannot be reached.
            DigestMismatch, EngineFault: What the cloud sent is none.
        """
        face = await asyncio.to_thread(self._read, digest)
        if face is not None:
            return face
        face = _parse(await self._fetch(face_path(digest)))
        if face.digest != digest:
            raise EngineFault(f"The cloud sent the face of {face.digest}, not of {digest}.")
        for file in face.files:
            content = await self._fetch(face_path(digest, file.sha256))
            if len(content) != file.bytes or hashlib.sha256(content).hexdigest() != file.sha256:
                raise DigestMismatch(f"The cloud sent a file '{file.name}' that is not the one it had named.")
            await asyncio.to_thread(self._write, digest, file.sha256, content)
        await asyncio.to_thread(self._write, digest, _RECORD, face.model_dump_json().encode())
        await asyncio.to_thread(self._prune)
        log.info("face_fetched", model=face.model, digest=digest, bytes=sum(file.bytes for file in face.files))
        return face

    def files(self, face: Face) -> ModelFiles:
        """Its files, as tokenizer and template are loaded from."""
        folder = self._place(face.digest)
        return ModelFiles(
            name=face.model,
            digest=face.digest,
            format=face.format,
            paths={file.name: folder / file.sha256 for file in face.files},
        )

    def forget(self, digest: str) -> None:
        """Remove a damaged one; it is fetched again when it is needed."""
        shutil.rmtree(self._place(digest), ignore_errors=True)

    def _place(self, digest: str) -> Path:
        return self._folder / digest.removeprefix("sha256:")

    def _known(self) -> dict[str, Face]:
        records = sorted(self._folder.glob(f"*/{_RECORD}"), key=lambda path: path.stat().st_mtime)
        return {face.model: face for face in map(_load, records)}

    def _read(self, digest: str) -> Face | None:
        """None where it is not here, or not whole."""
        record = self._place(digest) / _RECORD
        if not record.exists():
            return None
        face = _load(record)
        whole = all(
            path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256
            for file in face.files
            for path in [self._place(digest) / file.sha256]
        )
        if not whole or face.digest != digest:
            log.warning("face_damaged", model=face.model, digest=digest, effect="it is fetched again")
            self.forget(digest)
            return None
        return face

    def _write(self, digest: str, name: str, content: bytes) -> None:
        make_folder(self._place(digest))
        atomic_write(self._place(digest) / name, content)

    def _prune(self) -> None:
        folders = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for folder in folders[KEPT:]:
            shutil.rmtree(folder, ignore_errors=True)


def served_face(store: FaceStore, face: Face, capability: Capability | None, owner: str) -> ServedModel:
    """A model that is asked elsewhere; what is needed here is loaded from its face. Takes up to seconds: call it in a thread.

    Raises:
        BadModelFile, UnsupportedModel: Its tokenizer cannot be used here.
    """
    files = store.files(face)
    tokenizer = load_tokenizer(files)
    try:
        template = load_template(files, tokenizer)
    except TemplateFailed:
        template = None
    context = face.context if capability is None else capability.context or face.context
    return ServedModel(
        name=face.model,
        tokenizer=tokenizer,
        template=template,
        engine=AbsentEngine(face.model),
        max_context=context,
        digest=face.digest,
        created=face.created,
        owned_by=owner,
        here=False,
        sampling=_sampling(face),
    )


def _sampling(face: Face) -> dict[str, float]:
    try:
        return check_sampling(face.sampling)
    except ValueError as error:
        raise BadModelFile(f"The cloud recommends for '{face.model}' what cannot be: {error}.") from error


def _load(record: Path) -> Face:
    with translate_os_errors("read", record):
        return _parse(record.read_bytes())


def _parse(content: bytes) -> Face:
    try:
        return Face.model_validate_json(content)
    except ValidationError as error:
        raise EngineFault("What the cloud sent is no face of a model.") from error
