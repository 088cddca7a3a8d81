"""Faces: the same tokens, template and recommendations as the model, of files without weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.models.face import face_files
from edgewise.models.files import ModelFiles
from edgewise.models.templates import load_template
from edgewise.models.tiny import local_files, make_tiny_model
from edgewise.models.tokenizer import load_tokenizer
from edgewise.models.weights.gguf import header_of

TEXT = "Hello w\u00f6rld, and\n<|endoftext|> again"


def saved(files: ModelFiles, folder: Path) -> ModelFiles:
    paths = {}
    for number, (name, content) in enumerate(sorted(face_files(files).items())):
        paths[name] = folder / str(number)
        paths[name].write_bytes(content)
    return ModelFiles(name=files.name, digest=files.digest, format=files.format, paths=paths)


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_a_face_tokenizes_as_its_model(kind: str, tmp_path: Path) -> None:
    files = local_files(make_tiny_model(tmp_path / "model", format=kind))
    (tmp_path / "face").mkdir()
    face = saved(files, tmp_path / "face")
    ours, theirs = load_tokenizer(face), load_tokenizer(files)
    assert ours.encode(TEXT) == theirs.encode(TEXT)
    assert (ours.vocab_size, ours.eos_ids, ours.add_bos) == (theirs.vocab_size, theirs.eos_ids, theirs.add_bos)
    templates = load_template(face, ours), load_template(files, theirs)
    try:
        assert templates[0].sources == templates[1].sources
    finally:
        for template in templates:
            template.close()
    whole = sum(path.stat().st_size for path in files.paths.values())
    assert sum(path.stat().st_size for path in face.paths.values()) < whole
    if kind == "gguf":
        assert header_of(face).metadata.keys() == header_of(files).metadata.keys()
        assert not header_of(face).tensors
