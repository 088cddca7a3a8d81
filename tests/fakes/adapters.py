"""Adapters of random numbers in PEFT's form, and the merged model that each must agree with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from edgewise.models.adapters.files import AdapterFiles
from edgewise.models.adapters.layout import CONFIG, WEIGHTS

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_adapter(
    folder: Path,
    model: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    alpha: float = 8.0,
    modules: Sequence[str] = ALL,
    size: float = 0.3,
    **config: Any,
) -> Path:
    """Write an adapter of the Hugging Face folder `model` as PEFT's `save_pretrained` does."""
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(model / "model.safetensors")
    tensors = {}
    for name, weight in weights.items():
        if name.split(".")[-2] not in modules or not name.endswith(".weight"):
            continue
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        rows, columns = weight.shape
        tensors[f"{stem}.lora_A.weight"] = torch.randn((rank, columns), generator=generator) * size / math.sqrt(columns)
        tensors[f"{stem}.lora_B.weight"] = torch.randn((rows, rank), generator=generator) * size
    folder.mkdir(parents=True, exist_ok=True)
    scheme = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "target_modules": list(modules),
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "inference_mode": True,
        **config,
    }
    (folder / CONFIG).write_text(json.dumps(scheme))
    save_file(tensors, folder / WEIGHTS)
    return folder


def adapter_files(folder: Path, name: str = "adapter") -> AdapterFiles:
    """Without a store; the digest is made of the name."""
    return AdapterFiles(name=name, digest=f"sha256:{name}", config=str(folder / CONFIG), weights=str(folder / WEIGHTS))


def merge(model: Path, adapter: Path, out: Path) -> Path:
    """A copy of `model` with the adapter added to its weights, as PEFT's `merge_and_unload` does: W + scale * B @ A."""
    scheme: Mapping[str, Any] = json.loads((adapter / CONFIG).read_text())
    rank = scheme["r"]
    scale = scheme["lora_alpha"] / (math.sqrt(rank) if scheme["use_rslora"] else rank)
    weights, tensors = load_file(model / "model.safetensors"), load_file(adapter / WEIGHTS)
    for name, down in tensors.items():
        if name.endswith("lora_A.weight"):
            up = tensors[name.replace("lora_A", "lora_B")]
            target = name.removeprefix("base_model.model.").replace("lora_A.", "")
            delta = scale * (up.double() @ down.double())
            weights[target] = (weights[target].double() + delta).to(weights[target].dtype)
    out.mkdir(parents=True)
    for path in model.iterdir():
        if path.is_file() and path.name != "model.safetensors":
            (out / path.name).write_bytes(path.read_bytes())
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out
