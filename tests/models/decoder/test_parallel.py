"""Tensor parallelism: two processes that hold a share of each layer give what one gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files, make_tiny_model
from tests.accept.parity import reference
from tests.models.decoder.driver import Driver, load

ROOT = Path(__file__).resolve().parents[3]
TOKENS = [7 * i % 290 for i in range(70)]
# Fused and separate tensors, pairs and halves, experts, biases of summed products.
FAMILIES = ["llama-biases", "phi3", "glm4", "gemma3", "mixtral", "qwen3_moe"]
WORKER = """
import sys, torch, torch.distributed as dist
from pathlib import Path
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.parallel import ProcessGroup
from edgewise.models.tiny import local_files
from tests.models.decoder.driver import Driver
torch.set_num_threads(1)
rank, folder = int(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
for family in sys.argv[3:]:
    files = local_files(folder / family)
    decoder = load_decoder(files, device=torch.device("cpu"), dtype=torch.float32, parallel=ProcessGroup())
    drive = Driver(decoder)
    torch.save(drive.chunked(%(tokens)r, [40, 29, 1]), folder / f"{family}-{rank}.pt")
dist.destroy_process_group()
"""


class Place:
    """A device's place without other devices: sums stay its own part."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        return part


def write(family: str, folder: Path) -> ModelFiles:
    if family == "llama-biases":
        sizes: dict[str, Any] = {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "vocab_size": 300,
        }
        biases = {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2, "num_hidden_layers": 2}
        folder.mkdir()
        reference(LlamaConfig, {**sizes, **biases, "max_position_embeddings": 256, "initializer_range": 0.15}, folder)
    else:
        make_tiny_model(folder, family=family)
    return local_files(folder)


def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    expected = {family: Driver(load(write(family, tmp_path / family))).whole(TOKENS) for family in FAMILIES}
    code = WORKER % {"tokens": TOKENS}
    workers = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), str(tmp_path), *FAMILIES], cwd=ROOT)
        for rank in range(2)
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    for family, alone in expected.items():
        first, second = (torch.load(tmp_path / f"{family}-{rank}.pt") for rank in range(2))
        assert torch.equal(first, second), family
        assert (first - alone).abs().max() <= 1e-4, family
