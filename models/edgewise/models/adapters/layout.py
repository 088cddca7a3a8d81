"""What an adapter's files say and which of a decoder's products it changes. Torch-free: the store asks before it takes one.

PEFT writes two files: adapter_config.json, and adapter_model.safetensors with two matrices for each adapted product,
`base_model.model.<module>.lora_A.weight` [rank, in] and `...lora_B.weight` [out, rank]. The product becomes
x W^T + scale * (x A^T) B^T, with scale = alpha / rank, or alpha / sqrt(rank) for rsLoRA (Kalajdzievski 2023).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.kernels.limits import RANK_MULTIPLE, round_up
from edgewise.models.adapters.files import AdapterFiles
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.names import names_of
from edgewise.models.small_files import read_object
from edgewise.models.weights.file import RangeFile
from edgewise.models.weights.safetensors_header import parse_safetensors_header

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
MAX_RANK: Final = 512

Product = Literal["qkv", "output", "gate_up", "down"]
PRODUCTS: Final[tuple[Product, ...]] = ("qkv", "output", "gate_up", "down")

_TENSOR: Final = re.compile(
    r"base_model\.model\.model\.layers\.(\d+)\.(?:self_attn|mlp)\.([a-z_]+)\.lora_([AB])\.weight"
)
# What else an adapter may be, in PEFT's words, and the values that mean that it is not.
_PLAIN: Final[Mapping[str, tuple[Any, ...]]] = {
    "use_dora": (False,),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "modules_to_save": ((), []),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "lora_bias": (False,),
    "layer_replication": ((), []),
    "target_parameters": ((), []),
    "trainable_token_indices": ((), {}, []),
    "alora_invocation_tokens": ((), []),
    "use_qalora": (False,),
    "megatron_config": ({},),
    # Other ways to start (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA) change the base's weights too, and PEFT does it again at load.
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One adapted module: its matrices' names, its rows [first, first + rows) of the decoder's fused product, its rank."""

    down: str
    up: str
    first: int
    rows: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterLayout:
    """Attributes:
    scale: Of all products.
    parts: By layer and product.
    elements: Numbers in all matrices as the decoder holds them.
    """

    scale: float
    parts: Mapping[tuple[int, Product], tuple[Part, ...]]
    elements: int


def product_sizes(config: DecoderConfig) -> dict[Product, tuple[int, int]]:
    """Rows and columns of each product of a layer without experts."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.ffn_size
    return {
        "qkv": (queries + 2 * keys, hidden),
        "output": (hidden, queries),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }


def fused_rank(parts: Sequence[Part]) -> int:
    """Of the modules of one fused product together, filled up as the kernel wants it."""
    return round_up(sum(part.rank for part in parts), RANK_MULTIPLE)


def read_layout(files: AdapterFiles, config: DecoderConfig) -> AdapterLayout:
    """Read the headers and hold them against the decoder.

    Raises:
        UnsupportedModel: Another kind of adapter, or one that changes what cannot be changed here, by name.
        BadModelFile: A file is damaged, or a matrix has no partner or another shape than this decoder's.
        StorageError: A file cannot be read.
    """
    scheme = read_object(Path(files.config), CONFIG, most=1 << 20)
    rank, alpha = _scheme(scheme)
    if names_of(config, "safetensors", ()).paired:
        raise UnsupportedModel(f"Adapters of {config.architecture} are not supported: its heads rotate pair by pair.")
    with closing(RangeFile(Path(files.weights), WEIGHTS)) as file:
        shapes = {name: stored.shape for name, stored in parse_safetensors_header(file).items()}
    if not shapes:
        raise BadModelFile(f"{WEIGHTS} has no tensors.")
    parts: dict[tuple[int, Product], list[Part]] = {}
    for name in sorted(shapes):
        layer, module = _module(name)
        if name.endswith("lora_A.weight"):
            product, part = _part(name, shapes, _place(module, config, name), layer, config, rank)
            parts.setdefault((layer, product), []).append(part)
        elif name.replace("lora_B", "lora_A") not in shapes:
            raise BadModelFile(f"{WEIGHTS}: the tensor '{name}' has no lora_A beside it.")
    sizes = product_sizes(config)
    elements = sum(sum(sizes[product]) * fused_rank(found) for (_, product), found in parts.items())
    scale = alpha / (math.sqrt(rank) if scheme.get("use_rslora") else rank)
    return AdapterLayout(scale=scale, parts={key: tuple(found) for key, found in parts.items()}, elements=elements)


def _scheme(raw: Mapping[str, Any]) -> tuple[int, float]:
    """Rank and alpha of a plain LoRA."""
    if raw.get("peft_type") != "LORA":
        raise UnsupportedModel(f"{CONFIG}: 'peft_type' is {raw.get('peft_type')!r}; LORA is what can be used.")
    for key, plain in _PLAIN.items():
        value = raw.get(key)
        if value is not None and value not in plain:
            raise UnsupportedModel(f"{CONFIG}: {key!r} is {str(value)[:80]}, which is not supported.")
    rank, alpha = raw.get("r"), raw.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= MAX_RANK:
        raise BadModelFile(f"{CONFIG}: 'r' is {rank!r}; a rank is 1 to {MAX_RANK}.")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise BadModelFile(f"{CONFIG}: 'lora_alpha' is {alpha!r}, no number.")
    return rank, float(alpha)


def _module(name: str) -> tuple[int, str]:
    """Layer and module of a tensor."""
    found = _TENSOR.fullmatch(name)
    if found is None:
        raise UnsupportedModel(
            f"{WEIGHTS}: the tensor '{name}' changes what adapters cannot change here: the products of attention and "
            "feed-forward layers can be."
        )
    return int(found[1]), found[2]


def _place(module: str, config: DecoderConfig, name: str) -> tuple[Product, int, int]:
    """Product, first row and rows of a module in the decoder's fused tensors."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.ffn_size
    places: dict[str, tuple[Product, int, int]] = {
        "q_proj": ("qkv", 0, queries),
        "k_proj": ("qkv", queries, keys),
        "v_proj": ("qkv", queries + keys, keys),
        "qkv_proj": ("qkv", 0, queries + 2 * keys),
        "o_proj": ("output", 0, hidden),
        "gate_proj": ("gate_up", 0, inner),
        "up_proj": ("gate_up", inner, inner),
        "gate_up_proj": ("gate_up", 0, 2 * inner),
        "down_proj": ("down", 0, hidden),
    }
    if module not in places:
        raise UnsupportedModel(f"{WEIGHTS}: the tensor '{name}' belongs to no product that can be adapted here.")
    return places[module]


def _part(
    down: str,
    shapes: Mapping[str, tuple[int, ...]],
    place: tuple[Product, int, int],
    layer: int,
    config: DecoderConfig,
    rank: int,
) -> tuple[Product, Part]:
    product, first, rows = place
    if layer >= config.num_layers:
        raise BadModelFile(f"{WEIGHTS}: '{down}' is of layer {layer}; the model has {config.num_layers}.")
    if product in ("gate_up", "down") and config.experts_of(layer) is not None:
        raise UnsupportedModel(f"{WEIGHTS}: '{down}' is of a layer with experts, which cannot be adapted.")
    up = down.replace("lora_A", "lora_B")
    wanted = {down: (rank, product_sizes(config)[product][1]), up: (rows, rank)}
    for name, shape in wanted.items():
        if name not in shapes:
            raise BadModelFile(f"{WEIGHTS}: the tensor '{name}' is missing.")
        if shapes[name] != shape:
            raise BadModelFile(f"{WEIGHTS}: the tensor '{name}' is {shapes[name]}; for this model it is {shape}.")
    return product, Part(down=down, up=up, first=first, rows=rows, rank=rank)
