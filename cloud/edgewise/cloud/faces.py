"""Faces of this cloud's models: with them, devices that do not have a model tokenize for it. See `wire.face`."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import Response

from edgewise.api.responses import json_response
from edgewise.core.errors import ModelNotFound, NotFound
from edgewise.models.face import face_files
from edgewise.models.sampling import recommended_sampling
from edgewise.models.store import Store
from edgewise.pipeline.model import Models
from edgewise.wire.face import FACES, Face, FaceFile

_KEPT = 4
"""Faces in memory: a device asks for one and its files in a row."""


@dataclass(frozen=True, slots=True)
class _Read:
    face: Face
    contents: dict[str, bytes]


class Faces:
    """Reads them from the store. Args: `models`: those that may be asked."""

    def __init__(self, store: Store, models: Models) -> None:
        self._store = store
        self._models = models
        self._kept: OrderedDict[str, _Read] = OrderedDict()

    async def face(self, digest: str) -> Face:
        """Raises `ModelNotFound`."""
        return (await self._read(digest)).face

    async def content(self, digest: str, sha256: str) -> bytes:
        """Raises `NotFound`."""
        contents = (await self._read(digest)).contents
        if sha256 not in contents:
            raise NotFound(f"The model {digest[:20]} has no such file.")
        return contents[sha256]

    async def _read(self, digest: str) -> _Read:
        card = next((card for card in await self._models.cards() if card.digest == digest), None)
        if card is None:
            raise ModelNotFound(f"No model with the digest {digest[:80]} is here.")
        read = self._kept.get(digest)
        if read is None:
            model = await self._models.open(card.name)  # only then its context is known for sure
            read = await asyncio.to_thread(_read, self._store, model.name, model.context)
            self._kept[digest] = read
        self._kept.move_to_end(digest)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return read


def faces_router(faces: Faces) -> APIRouter:
    router = APIRouter(tags=["Cloud"])

    @router.get(FACES + "/{digest}")
    async def face(digest: str) -> Response:
        """What a device needs to tokenize for a model that it does not have."""
        return json_response((await faces.face(digest)).model_dump(mode="json"))

    @router.get(FACES + "/{digest}/{sha256}")
    async def content(digest: str, sha256: str) -> Response:
        """One file of it."""
        return Response(await faces.content(digest, sha256), media_type="application/octet-stream")

    return router


def _read(store: Store, name: str, context: int) -> _Read:
    files, manifest = store.resolve(name), store.manifest(name)
    contents = face_files(files)
    hashes = {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()}
    face = Face(
        model=name,
        digest=files.digest,
        format="gguf" if files.format == "gguf" else "safetensors",  # language models come in these two
        context=context,
        created=manifest.installed_seconds,
        sampling=dict(manifest.info.sampling or recommended_sampling(files)),
        files=tuple(
            FaceFile(name=file, sha256=hashes[file], bytes=len(content)) for file, content in sorted(contents.items())
        ),
    )
    return _Read(face, {hashes[file]: content for file, content in contents.items()})
