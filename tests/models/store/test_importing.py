from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edgewise.core.errors import BadModelFile, EdgewiseError, InvalidRequest, StorageError
from edgewise.models.intake import How
from edgewise.models.progress import Progress
from edgewise.models.store import Store
from edgewise.models.weights.write import StoredTensor, write_gguf, write_safetensors
from tests.fakes.gguf import gguf_bytes

Tree = Callable[[Path], dict[str, int]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder in two shards, with files that are no part of a model."""
    path = tmp_path / "My Model (v2)"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    (path / "tokenizer.json").write_text("{}")
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {"weight_map": {f"t{number}": shard for number, shard in enumerate(shards)}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    for number, shard in enumerate(shards):
        write_safetensors(path / shard, [StoredTensor(f"t{number}", (10, 25), "F32", bytes([number]) * 1000)])
    (path / "README.md").write_text("hello")
    (path / "pytorch_model.bin").write_text("pickle")
    (path / "onnx").mkdir()
    return path


@pytest.fixture
def gguf(tmp_path: Path, payload: bytes) -> Path:
    path = tmp_path / "Some Model.Q4_1.gguf"
    path.write_bytes(payload)
    return path


def test_the_context_of_a_model_with_eyes_is_that_of_its_text(store: Store, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 2048}}))
    assert store.import_path(folder).manifest.info.context == 2048


def test_a_folder_is_imported_and_what_is_left_out_is_named(store: Store, folder: Path) -> None:
    done = store.import_path(folder)
    assert done.left_out == ("README.md", "onnx", "pytorch_model.bin")
    assert done.manifest.name == "my-model-v2"
    info = done.manifest.info
    assert (info.context, info.parameters, info.chat_template) == (4096, 500, "in-file")
    files = store.resolve("my-model-v2")
    assert files.format == "safetensors"
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    companions = ["config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(files.paths) == sorted([*shards, *companions])
    assert all(path.read_bytes() == (folder / name).read_bytes() for name, path in files.paths.items())


def test_links_of_a_hub_cache_are_followed(store: Store, folder: Path, tmp_path: Path) -> None:
    real = tmp_path / "blob-0"
    (folder / "model-00001-of-00002.safetensors").rename(real)
    (folder / "model-00001-of-00002.safetensors").symlink_to("../blob-0")
    paths = store.import_path(folder).manifest
    blob = store.resolve(paths.name).paths["model-00001-of-00002.safetensors"]
    assert not blob.is_symlink()
    assert blob.read_bytes() == real.read_bytes()


def test_a_gguf_is_copied_with_progress_and_keeps_its_own_mode(store: Store, gguf: Path, payload: bytes) -> None:
    seen: list[Progress] = []
    gguf.chmod(0o600)
    done = store.import_path(gguf, progress=seen.append)
    assert done.manifest.name == "some-model.q4_1"
    assert done.manifest.source == f"import:{gguf}"
    assert [file.name for file in done.manifest.files] == ["some-model.q4_1.gguf"], "a blank is no part of a file name"
    assert seen == [Progress("copy", "some-model.q4_1.gguf", len(payload), len(payload))]
    assert gguf.read_bytes() == payload
    assert gguf.stat().st_mode & 0o777 == 0o600


def test_a_hard_link_shares_the_file_and_leaves_its_mode(store: Store, gguf: Path) -> None:
    gguf.chmod(0o640)
    store.import_path(gguf, "m", how="hardlink")
    (blob,) = store.resolve("m").paths.values()
    assert blob.samefile(gguf)
    assert gguf.stat().st_mode & 0o777 == 0o640
    with gguf.open("r+b") as file:
        file.write(b"GGUF changed by its owner")
    assert store.verify()[0].state == "damaged"


def test_a_link_that_the_disk_cannot_make_is_refused_not_replaced(gguf: Path, tree: Tree) -> None:
    root = Path("/dev/shm") / f"edgewise-test-{os.getpid()}"  # another file system, and one without reflinks
    store = Store(root, reserve_bytes=0)
    try:
        hows: tuple[How, ...] = ("reflink", "hardlink")
        for how in hows:
            with pytest.raises(StorageError, match="without --link"):
                store.import_path(gguf, "m", how=how)
            assert tree(root) == {}
    finally:
        shutil.rmtree(root, ignore_errors=True)


def test_importing_twice_is_one_model(store: Store, gguf: Path, tree: Tree) -> None:
    first = store.import_path(gguf, "m").manifest
    before = tree(store.root)
    assert store.import_path(gguf, "m").manifest.digest == first.digest
    assert tree(store.root) == before


def test_a_taken_name_is_kept_and_the_copy_given_back(store: Store, gguf: Path, tmp_path: Path, tree: Tree) -> None:
    store.import_path(gguf, "m")
    before = tree(store.root)
    other = tmp_path / "other.gguf"
    other.write_bytes(gguf_bytes(b"other"))
    with pytest.raises(InvalidRequest, match="'m' is taken"):
        store.import_path(other, "m")
    assert tree(store.root) == before


def test_the_name_of_a_set_is_refused(store: Store, gguf: Path) -> None:
    with pytest.raises(InvalidRequest, match="names a set"):
        store.import_path(gguf, "starter")


def no_model(path: Path) -> Path:
    path.write_text("text")
    return path


def gguf_in_folder(path: Path) -> Path:
    (path / "x.gguf").write_bytes(gguf_bytes(b"x"))
    return path


def test_what_a_gguf_header_says_is_kept(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    metadata: dict[str, str | int] = {
        "general.architecture": "llama",
        "general.license": "apache-2.0",
        "llama.context_length": 2048,
        "tokenizer.chat_template": "{{ messages }}",
    }
    write_gguf(path, metadata, [StoredTensor("a", (3, 8), "F32", bytes(96)), StoredTensor("b", (4,), "F16", bytes(8))])
    info = store.import_path(path).manifest.info
    assert (info.context, info.parameters, info.chat_template) == (2048, 28, "in-file")
    assert info.licence_model == "apache-2.0"
    path.write_bytes(gguf_bytes(b"bare"))
    bare = store.import_path(path, "bare").manifest.info
    assert (bare.context, bare.parameters, bare.chat_template, bare.licence_model) == (None, 4, "none", "unknown")


@pytest.mark.parametrize("licence", ["x" * 101, "\x1b[31mred", "a\nb", ""])
def test_a_licence_that_is_no_name_is_unknown(licence: str, store: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, {"general.license": licence}, [StoredTensor("b", (4,), "F16", bytes(8))])
    assert store.import_path(path).manifest.info.licence_model == "unknown"


def test_a_cut_gguf_is_refused_before_anything_is_copied(store: Store, gguf: Path) -> None:
    gguf.write_bytes(gguf.read_bytes()[:-1])
    with pytest.raises(BadModelFile, match=r"\.gguf, byte 299999: "):
        store.import_path(gguf)
    assert not store.root.exists()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda f: f / "none", InvalidRequest, "is not there"),
        (lambda f: no_model(f / "x.bin"), InvalidRequest, "neither a .gguf file nor a folder"),
        (lambda f: no_model(f / "x.gguf"), BadModelFile, r"x\.gguf, byte 0: not a GGUF file"),
        (lambda f: f.parent / "empty", InvalidRequest, "has no config.json: a Hugging Face model folder has both"),
        (
            lambda f: gguf_in_folder(f.parent / "empty"),
            InvalidRequest,
            "has no config.json: give the .gguf file itself",
        ),
        (lambda f: f / "x-00001-of-00002.gguf", InvalidRequest, "one part of a split GGUF"),
        (lambda f: f / "模型.gguf", InvalidRequest, "choose one with --name"),
    ],
)
def test_what_is_no_model_is_refused(
    make: Callable[[Path], Path], error: type[EdgewiseError], message: str, store: Store, folder: Path
) -> None:
    (folder.parent / "empty").mkdir()
    (folder / "x-00001-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(error, match=message):
        store.import_path(make(folder))
    assert not store.root.exists()


def remove_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def break_link(folder: Path) -> None:
    remove_shard(folder)
    (folder / "model-00002-of-00002.safetensors").symlink_to("gone")


def loop_link(folder: Path) -> None:
    remove_shard(folder)
    (folder / "model-00002-of-00002.safetensors").symlink_to("model-00002-of-00002.safetensors")


def pipe(folder: Path) -> None:
    remove_shard(folder)
    os.mkfifo(folder / "model-00002-of-00002.safetensors")


def cut_shard(folder: Path) -> None:
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)


def list_config(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def break_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{}")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (remove_shard, "lacks model-00002-of-00002.safetensors"),
        (break_link, "leads nowhere"),
        (loop_link, "leads nowhere"),
        (pipe, "not a regular file"),
        (cut_shard, r"model-00002-of-00002\.safetensors, byte \d+: "),
        (break_config, "is not JSON"),
        (list_config, "not a JSON object"),
        (break_index, "no object 'weight_map'"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(
    harm: Callable[[Path], None], message: str, store: Store, folder: Path
) -> None:
    harm(folder)
    with pytest.raises(BadModelFile, match=message):
        store.import_path(folder)
    assert not store.root.exists()
