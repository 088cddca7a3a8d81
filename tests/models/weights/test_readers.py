"""Reading tensors: rows, dtypes, bounded memory; the same weights through every format."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import safetensors.torch
import torch

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files
from edgewise.models.weights import stream
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.reader import WeightReader
from edgewise.models.weights.write import StoredTensor, write_gguf, write_safetensors

TinyModelFactory = Callable[..., ModelFiles]


def read(reader: WeightReader, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = torch.empty(reader.tensors[name].shape, dtype=dtype)
    reader.read_into(name, out)
    return out


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[tuple[WeightReader, dict[str, torch.Tensor]]]:
    """A folder with one tensor of every plain dtype, written by the safetensors package."""
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
    kinds += [torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool]
    tensors = {str(kind): (torch.arange(24).reshape(4, 3, 2) % 7).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "vector": torch.linspace(-1, 1, 9)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with closing(open_weights(local_files(tmp_path))) as reader:
        yield reader, tensors


def test_every_plain_dtype_is_read_exactly(numbers: tuple[WeightReader, dict[str, torch.Tensor]]) -> None:
    reader, tensors = numbers
    assert set(reader.tensors) == set(tensors)
    for name, tensor in tensors.items():
        assert reader.tensors[name].shape == tuple(tensor.shape)
        assert torch.equal(read(reader, name, tensor.dtype), tensor), name


def test_conversion_rounds_as_torch_does(numbers: tuple[WeightReader, dict[str, torch.Tensor]]) -> None:
    reader, tensors = numbers
    for kind in (torch.float16, torch.bfloat16, torch.float64):
        assert torch.equal(read(reader, "vector", kind), tensors["vector"].to(kind))
    assert torch.equal(read(reader, "torch.int8", torch.float32), tensors["torch.int8"].float())
    with pytest.raises(ValueError, match=r"cannot be read into torch\.int32"):
        read(reader, "vector", torch.int32)


def test_targets_that_do_not_fit_are_refused(numbers: tuple[WeightReader, dict[str, torch.Tensor]]) -> None:
    reader, _ = numbers
    name = "torch.float32"
    for out in (torch.empty(4, 2, 3), torch.empty(4, 6), torch.empty(5, 3, 2), torch.empty(2, 3, 4).transpose(0, 2)):
        with pytest.raises(ValueError):
            reader.read_into(name, out)
    with pytest.raises(ValueError):
        reader.read_into(name, torch.empty(2, 3, 2), first_row=3)
    with pytest.raises(ValueError):
        reader.read_into(name, torch.empty(2, 3, 2), first_row=-1)


@pytest.mark.parametrize("piece", [32, 64, 1 << 18])
def test_rows_do_not_depend_on_pieces(starter_files: ModelFiles, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(stream, "PIECE_ELEMENTS", piece)
    with closing(open_weights(starter_files)) as reader:
        for name in ("blk.0.attn_k.weight", "token_embd.weight", "output_norm.weight"):
            rows = torch.empty(5, *reader.tensors[name].shape[1:])
            reader.read_into(name, rows, first_row=17)
            monkeypatch.setattr(stream, "PIECE_ELEMENTS", 1 << 18)
            assert torch.equal(rows, read(reader, name)[17:22])
            monkeypatch.setattr(stream, "PIECE_ELEMENTS", piece)


@pytest.mark.parametrize("options", [{"shards": 3}, {"dtype": "BF16"}, {"dtype": "F16", "shards": 2}])
def test_a_folder_reads_as_the_safetensors_package_does(
    tiny_model_factory: TinyModelFactory, options: dict[str, object]
) -> None:
    files = tiny_model_factory(**options)
    expected: dict[str, torch.Tensor] = {}
    for name, path in files.paths.items():
        if name.endswith(".safetensors"):
            expected |= safetensors.torch.load_file(path)
    with closing(open_weights(files)) as reader:
        assert set(reader.tensors) == set(expected)
        assert all(torch.equal(read(reader, name, tensor.dtype), tensor) for name, tensor in expected.items())


def test_gguf_and_folder_of_one_tiny_model_hold_the_same_numbers(tiny_model_factory: TinyModelFactory) -> None:
    """Qwen3's rows are in the same order in both; the llama architecture's are not, which is the loader's business."""
    folder, single = tiny_model_factory(family="qwen3"), tiny_model_factory(family="qwen3", format="gguf")
    with closing(open_weights(folder)) as left, closing(open_weights(single)) as right:
        pairs = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight"}
        pairs |= {"model.layers.1.self_attn.q_norm.weight": "blk.1.attn_q_norm.weight"}
        pairs |= {"model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight"}
        assert len(left.tensors) == len(right.tensors)
        for hugging, ggml in pairs.items():
            assert torch.equal(read(left, hugging), read(right, ggml))


def test_encodings_we_lack_are_named_only_when_read(tmp_path: Path) -> None:
    plain = StoredTensor("plain", (8,), "F32", bytes(32))
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, [plain, plain])
    raw = bytearray((tmp_path / "m.gguf").read_bytes())
    at = raw.rindex(b"plain")
    raw[at : at + 5] = b"other"
    raw[at + 5 : at + 5 + 24] = struct.pack("<IQIQ", 1, 256, 22, 32)  # one block of IQ2_S, 82 bytes
    (tmp_path / "m.gguf").write_bytes(bytes(raw[:-32]) + bytes(82))
    with closing(open_weights(local_files(tmp_path))) as reader:
        assert torch.equal(read(reader, "plain"), torch.zeros(8))
        with pytest.raises(UnsupportedModel, match="'other': IQ2_S weights cannot be read"):
            read(reader, "other")


def test_fp8_of_the_other_kind_is_named_only_when_read(tmp_path: Path) -> None:
    tensors = [StoredTensor("a", (4,), "F8_E5M2", bytes(4)), StoredTensor("b", (1,), "F32", bytes(4))]
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with closing(open_weights(local_files(tmp_path))) as reader:
        assert read(reader, "b").item() == 0.0
        with pytest.raises(UnsupportedModel, match="F8_E5M2"):
            read(reader, "a")


def test_a_file_that_shrinks_after_opening_is_a_clean_error(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", [StoredTensor("a", (1024,), "F32", bytes(4096))])
    with closing(open_weights(local_files(tmp_path))) as reader:
        os.truncate(tmp_path / "model.safetensors", 2000)
        with pytest.raises(BadModelFile, match=r"^model\.safetensors, byte 2000: the file ends here"):
            read(reader, "a")


MEASURE = """
import sys, torch
from pathlib import Path
from edgewise.models.tiny import local_files
from edgewise.models.weights.open import open_weights

def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))

reader = open_weights(local_files(Path(sys.argv[1])))
targets = {name: torch.zeros(info.shape) for name, info in reader.tensors.items()}
for target in targets.values():
    target.fill_(1.0)
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
for name, target in targets.items():
    reader.read_into(name, target)
print(status("VmHWM") - before, sum(target.nbytes for target in targets.values()))
"""


@pytest.mark.parametrize("format", ["safetensors", "gguf"])
def test_loading_peaks_a_few_mib_above_the_weights(tiny_model_factory: TinyModelFactory, format: str) -> None:
    options = {"vocab": 32768, "hidden": 256, "layers": 1}  # 65 MiB in float32
    files = tiny_model_factory(format=format, dtype="F16", **options)
    folder = next(iter(files.paths.values())).parent
    command = [sys.executable, "-W", "ignore", "-c", MEASURE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    extra, weights = map(int, done.stdout.split())
    assert weights > 60 << 20
    assert extra < 8 << 20
