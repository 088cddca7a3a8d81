"""Tensor parallelism: several processes that hold a share of each layer give what one gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from edgewise.models.decoder.config import read_config
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.memory import weight_bytes
from edgewise.models.decoder.parallel import ProcessGroup
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files, make_tiny_model
from edgewise.models.weights.file import RangeFile
from tests.accept.parity import reference
from tests.models.decoder.driver import Driver, load

ROOT = Path(__file__).resolve().parents[3]
TOKENS = [7 * i % 290 for i in range(70)]
# Fused and separate tensors, pairs and halves, experts, biases of summed products.
FAMILIES = ["llama-biases", "phi3", "glm4", "gemma3", "mixtral", "qwen3_moe"]
WORKER = """
import sys, torch, torch.distributed as dist
from pathlib import Path
from edgewise.models.decoder import parallel
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.tiny import local_files
from tests.models.decoder.driver import Driver
torch.set_num_threads(1)
rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting-{size}", rank=rank, world_size=size)
group = parallel.ProcessGroup(rank, size)
for family in sys.argv[4:]:
    files = local_files(folder / family)
    decoder = load_decoder(files, device=torch.device("cpu"), dtype=torch.float32, parallel=group)
    drive = Driver(decoder)
    torch.save(drive.chunked(%(tokens)r, [40, 29, 1]), folder / f"{family}-{rank}.pt")
torch.manual_seed(rank)
part = torch.randn(13, 37)
whole = group.sum(part)
row = group.sum(part[5:6].contiguous())
parallel.ONE_SHOT_BYTES = 0
assert torch.equal(whole, group.sum(part)) and torch.equal(row[0], whole[5])
half = group.sum(part.bfloat16())
assert half.dtype == torch.float32 and (half - whole).abs().max() < 0.1
dist.destroy_process_group()
"""


def write(family: str, folder: Path) -> ModelFiles:
    if family == "llama-biases":
        sizes: dict[str, Any] = {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "vocab_size": 301,
        }
        biases = {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2, "num_hidden_layers": 2}
        folder.mkdir()
        reference(LlamaConfig, {**sizes, **biases, "max_position_embeddings": 256, "initializer_range": 0.15}, folder)
    else:
        make_tiny_model(folder, family=family)
    return local_files(folder)


@pytest.mark.parametrize(
    ("size", "families"), [(2, FAMILIES), (4, ["llama-biases", "phi3"])], ids=["two", "four-with-KV-heads-twice"]
)
def test_several_processes_give_what_one_gives(tmp_path: Path, size: int, families: list[str]) -> None:
    """Of four devices two hold the same KV head, and the last has fewer tokens of the vocabulary."""
    expected = {family: Driver(load(write(family, tmp_path / family))).whole(TOKENS) for family in families}
    code = WORKER % {"tokens": TOKENS}
    workers = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), str(size), str(tmp_path), *families], cwd=ROOT)
        for rank in range(size)
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0] * size
    for family, alone in expected.items():
        logits = torch.load(tmp_path / f"{family}-0.pt")
        assert logits.shape == alone.shape
        assert (logits - alone).abs().max() <= 1e-4, family


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (3, r"4 query heads cannot be divided among 3 devices; 1, 2 or 4 can compute"),
        (8, r"4 query heads cannot be divided among 8 devices"),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_those_that_can(tmp_path: Path, size: int, reason: str) -> None:
    config = read_config(write("mixtral", tmp_path / "model"))
    with pytest.raises(ValueError, match=reason):
        config.shard(size)


def test_shares_are_of_one_sum(tmp_path: Path) -> None:
    """Four devices of two KV heads, and of a vocabulary that cannot be divided."""
    config = read_config(write("llama-biases", tmp_path / "model"))
    four = config.shard(4)
    assert (four.num_heads, four.num_kv_heads, four.kv_replicas, four.ffn_size) == (1, 1, 2, 24)
    assert (four.vocab_size, four.vocab_rows) == (301, 76)
    assert config.shard(2).kv_replicas == 1


@pytest.mark.parametrize("size", [2, 4])
def test_a_device_reads_its_own_part_of_the_files_alone(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = local_files(make_tiny_model(tmp_path / "model", hidden=128, intermediate=512, kv_heads=4))
    read: list[int] = []
    plain = RangeFile.read_into

    def counting(self: RangeFile, offset: int, target: memoryview) -> None:
        read.append(len(target))
        plain(self, offset, target)

    monkeypatch.setattr(RangeFile, "read_into", counting)
    whole = weight_bytes(read_config(files), "float32")
    for rank in range(size):
        read.clear()
        load_decoder(files, device=torch.device("cpu"), dtype=torch.float32, parallel=ProcessGroup(rank, size))
        assert sum(read) <= 1.1 * whole / size + 20_000  # header and norms are everybody's
