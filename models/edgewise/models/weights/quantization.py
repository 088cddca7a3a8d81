"""Which quantization a Hugging Face config.json names, and whether its weights can be read. Torch-free.

Sources: the `quantization_config` that AutoAWQ, AutoGPTQ / GPTQModel, compressed-tensors, AutoFP8 and transformers (fine-grained
and FBGEMM fp8) write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgewise.core.errors import BadModelFile, UnsupportedModel

KEY = "quantization_config"
OLD_KEY = "compression_config"  # compressed-tensors before it joined transformers
METHODS = ("awq", "gptq", "compressed-tensors", "fp8", "fbgemm_fp8")

Method = Literal["awq", "gptq", "compressed-tensors", "fp8"]
Strategy = Literal["tensor", "channel", "group", "block"]
_STRATEGIES: tuple[Strategy, ...] = ("tensor", "channel", "group", "block")
_CT_FORMATS = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized")
_MAX_GROUP = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How the quantized matrices of a checkpoint are stored.

    Attributes:
        bits: Of a stored weight: 4 or 8.
        floats: Whether they are fp8 (e4m3) rather than integers.
        group_size: Inputs that share a scale; None for one scale per output ("channel"), per matrix or per block.
        strategy: What shares a scale.
        block: (outputs, inputs) of a block, for strategy "block".
        symmetric: Whether there are no zero points (compressed-tensors; AWQ and GPTQ always store them).
        zero_offset: Added to stored zero points: 1 in GPTQ's first format, which stores them less one.
        packed: Whether several weights share a 32-bit word.
    """

    method: Method
    bits: int
    floats: bool
    group_size: int | None
    strategy: Strategy
    block: tuple[int, int] | None = None
    symmetric: bool
    zero_offset: int = 0
    packed: bool


def parse_quantization(config: Mapping[str, Any], name: str) -> Quantization | None:
    """The quantization that a config.json names; None if it names none. `name` is what messages call the file.

    Raises:
        UnsupportedModel: A method, or an option of one, that cannot be read, by name.
        BadModelFile: A value is impossible.
    """
    key = KEY if config.get(KEY) is not None else OLD_KEY
    raw = config.get(key)
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise BadModelFile(f"{name}: '{key}' must be an object.")
    options = _Options(raw, f"{name}: '{key}'")
    method = options.values.get("quant_method")
    if method == "awq":
        return _awq(options)
    if method == "gptq":
        return _gptq(options)
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed_tensors(options)
    if method in ("fp8", "fbgemm_fp8"):
        return _fp8(options, "channel" if method == "fbgemm_fp8" else "tensor")
    raise UnsupportedModel(f"{options.where}: the method {method!r}; this build reads {', '.join(METHODS)}.")


@dataclass(frozen=True, slots=True)
class _Options:
    values: Mapping[str, Any]
    where: str

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of several names of an option that is there and not null."""
        return next((self.values[key] for key in keys if self.values.get(key) is not None), default)

    def word(self, *keys: str, default: str) -> str:
        value = self.get(*keys, default=default)
        if not isinstance(value, str):
            raise BadModelFile(f"{self.where}: '{keys[0]}' is {value!r}; it must be a name.")
        return value.lower()

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default=default)
        if not isinstance(value, bool):
            raise BadModelFile(f"{self.where}: '{key}' is {value!r}; it must be true or false.")
        return value

    def group_size(self, *keys: str, default: int | None = None) -> int | None:
        """-1 stands for a whole row."""
        value = self.get(*keys, default=default)
        if value is None or value == -1:
            return None
        if type(value) is not int or not 0 < value <= _MAX_GROUP:
            raise BadModelFile(f"{self.where}: '{keys[0]}' is {value!r}; it must be -1 or from 1 to {_MAX_GROUP}.")
        return value

    def require(self, what: str, value: object, readable: Sequence[object]) -> None:
        if not any(type(value) is type(known) and value == known for known in readable):
            can = " and ".join(map(repr, readable))
            raise UnsupportedModel(f"{self.where}: {what} is {value!r}; this build reads {can}.")

    def refuse(self, *keys: str) -> None:
        for key in keys:
            if self.values.get(key):
                raise UnsupportedModel(
                    f"{self.where}: '{key}' is {self.values[key]!r}; this build reads models without."
                )


def _awq(options: _Options) -> Quantization:
    options.require("'bits'", options.get("bits", "w_bit", default=4), (4,))
    for key in ("version", "format", "checkpoint_format"):
        options.require(f"'{key}'", options.word(key, default="gemm"), ("gemm",))
    options.require("'zero_point'", options.flag("zero_point", True), (True,))
    options.refuse("dynamic", "rotation")
    group = options.group_size("group_size", "q_group_size", default=128)
    return _packed_by_columns("awq", group, 0)


def _gptq(options: _Options) -> Quantization:
    options.require("'bits'", options.get("bits", default=4), (4,))
    layout = options.word("checkpoint_format", "format", default="gptq")
    options.require("'checkpoint_format'", layout, ("gptq", "gptq_v2"))
    options.require("'pack_dtype'", options.word("pack_dtype", default="int32"), ("int32",))
    options.refuse("dynamic", "is_marlin_format", "rotation", "adapter")
    group = options.group_size("group_size", default=128)
    return _packed_by_columns("gptq", group, 1 if layout == "gptq" else 0)


def _packed_by_columns(method: Method, group: int | None, zero_offset: int) -> Quantization:
    return Quantization(
        method=method,
        bits=4,
        floats=False,
        group_size=group,
        strategy="channel" if group is None else "group",
        symmetric=False,
        zero_offset=zero_offset,
        packed=True,
    )


def _compressed_tensors(options: _Options) -> Quantization:
    layout = options.word("format", default="dense")
    options.require("'format'", layout, _CT_FORMATS)
    sparsity = options.get("sparsity_config", default={})
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise UnsupportedModel(f"{options.where}: 'sparsity_config' is {sparsity!r}; this build reads dense weights.")
    options.refuse("transform_config")
    weights = _weights_of_groups(options, layout)
    return _compressed_weights(_Options(weights, f"{options.where}, weights"), layout)


def _weights_of_groups(options: _Options, layout: str) -> Mapping[str, Any]:
    """What the groups say of their weights, which must be the same in all."""
    groups = options.get("config_groups", default={})
    if not isinstance(groups, dict) or not groups or not all(isinstance(group, dict) for group in groups.values()):
        raise BadModelFile(f"{options.where}: 'config_groups' must be an object of objects.")
    found = [group.get("weights") for group in groups.values()]
    if not all(isinstance(weights, dict) for weights in found) or any(weights != found[0] for weights in found):
        raise UnsupportedModel(f"{options.where}: 'config_groups' differ in their weights; this build reads one kind.")
    for group in groups.values():
        options.require("the 'format' of a group", group.get("format") or layout, (layout,))
    weights: Mapping[str, Any] = found[0]
    return weights


def _compressed_weights(options: _Options, layout: str) -> Quantization:
    packed, kind = layout == "pack-quantized", options.word("type", default="int")
    options.require("'type'", kind, ("int",) if layout in ("pack-quantized", "int-quantized") else ("int", "float"))
    bits = options.get("num_bits", default=8)
    options.require("'num_bits'", bits, (4, 8) if packed else (8,))
    strategy = options.word("strategy", default="group" if options.get("group_size") else "tensor")
    options.require("'strategy'", strategy, _STRATEGIES[:3] if packed else _STRATEGIES)
    options.require("'actorder'", options.get("actorder", default=None), (None, False, "weight", "static"))
    options.require("'dynamic'", options.flag("dynamic", False), (False,))
    symmetric = options.flag("symmetric", True)
    if kind == "float":
        options.require("'symmetric'", symmetric, (True,))
    group = options.group_size("group_size") if strategy == "group" else None
    if strategy == "group" and group is None:
        raise BadModelFile(f"{options.where}: 'group_size' is missing.")
    return Quantization(
        method="compressed-tensors",
        bits=bits,
        floats=kind == "float",
        group_size=group,
        strategy=next(known for known in _STRATEGIES if known == strategy),
        block=_block(options, "block_structure") if strategy == "block" else None,
        symmetric=symmetric,
        packed=packed,
    )


def _fp8(options: _Options, strategy: Strategy) -> Quantization:
    """Scales of blocks where their size is given, else one for a matrix or for each output."""
    options.require("'fmt'", options.word("fmt", default="e4m3"), ("e4m3", "float8_e4m3fn"))
    options.require("'activation_scheme'", options.word("activation_scheme", default="dynamic"), ("dynamic", "static"))
    blocks = options.get("weight_block_size") is not None
    return Quantization(
        method="fp8",
        bits=8,
        floats=True,
        group_size=None,
        strategy="block" if blocks else strategy,
        block=_block(options, "weight_block_size") if blocks else None,
        symmetric=True,
        packed=False,
    )


def _block(options: _Options, key: str) -> tuple[int, int]:
    sizes = options.get(key, default=())
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise BadModelFile(f"{options.where}: '{key}' is {sizes!r}; it must be two sizes.")
    return sizes[0], sizes[1]
