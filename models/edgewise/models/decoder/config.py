"""What a decoder looks like, read from a Hugging Face config.json or a GGUF header. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from edgewise.core.errors import BadModelFile
from edgewise.kernels.rope_parameters import RopeParameters
from edgewise.models.decoder import gguf_fields, hf_fields
from edgewise.models.decoder.experts import Experts
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_object
from edgewise.models.weights.gguf import GGUFArray, GGUFHeader, header_of
from edgewise.models.weights.gguf_types import STRING

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 4 << 20

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes and features of a decoder: pre-norm layers of rotary attention and a gated feed-forward block.

    Attributes:
        architecture: Names the family in messages, and the tensors' names in files (`layout`); nothing is computed by it.
        rotary_dim: How many of a head's dimensions rotate, the first ones.
        ffn_size: Inner size of the feed-forward block; `experts` has its own.
        rms_eps: Added to the mean square in every norm.
        rope: How layers rotate queries and keys.
        local_rope: How layers with a window do, if otherwise.
        unrotated: Layers that do not rotate at all.
        windows: Per layer, how many positions a token sees, itself included; None for all before it.
        qk_norm: Whether query and key heads are normalised before rotation.
        qkv_bias, output_bias, mlp_bias: Whether the attention input, attention output and feed-forward products add a bias.
        tied_embeddings: Whether the output head is the embedding table.
        max_position: Context in tokens that the model was made for.
        attention_scale: Multiplies attention scores.
        attention_softcap, logit_softcap: Bounds of attention scores and of the output's logits (`kernels.softcap`); None
            leaves them.
        activation: Of the gate in the feed-forward block.
        post_norms: Whether the results of attention and feed-forward are normalised before they are added.
        embedding_scale: Multiplies embeddings.
        experts: The layers whose feed-forward block consists of experts; None if there are none.
        encodings: Of the tensors of the GGUF file that the decoder was read from, by name ("Q4_0"); empty for other files.
        devices: How many devices compute the model together (`shard`); heads and inner sizes are those of one of them, all else
            is the model's.
        kv_replicas: How many of them hold the same KV heads.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    ffn_size: int
    rms_eps: float
    rope: RopeParameters
    windows: tuple[int | None, ...]
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied_embeddings: bool
    max_position: int
    attention_scale: float
    local_rope: RopeParameters | None = None
    unrotated: frozenset[int] = frozenset()
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    activation: Activation = "silu"
    post_norms: bool = False
    embedding_scale: float = 1.0
    experts: Experts | None = None
    encodings: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    devices: int = 1
    kv_replicas: int = 1

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise BadModelFile(
                f"{self.architecture}: {self.num_heads} query heads are no multiple of {self.num_kv_heads} KV heads."
            )
        if self.head_dim % 2:
            raise BadModelFile(f"{self.architecture}: the head size is {self.head_dim}; rotation needs an even one.")
        if not 0 < self.rotary_dim <= self.head_dim or self.rotary_dim % 2:
            raise BadModelFile(f"{self.architecture}: {self.rotary_dim} of {self.head_dim} dimensions cannot rotate.")
        if len(self.windows) != self.num_layers:
            raise BadModelFile(f"{self.architecture}: {len(self.windows)} windows for {self.num_layers} layers.")
        if self.experts is not None and self.experts.per_token > self.experts.count:
            raise BadModelFile(
                f"{self.architecture}: {self.experts.per_token} experts per token of {self.experts.count} in all."
            )

    def rope_of(self, layer: int) -> RopeParameters | None:
        """How a layer rotates queries and keys; None if it does not."""
        if layer in self.unrotated:
            return None
        return self.rope if self.windows[layer] is None else self.local_rope or self.rope

    def experts_of(self, layer: int) -> Experts | None:
        """The experts of a layer; None where one feed-forward block serves all tokens."""
        return self.experts if self.experts is not None and self.experts.layers[layer] else None

    def served(self, context: int | None) -> DecoderConfig:
        """The configuration for contexts up to `context` tokens, which decides between the two sets of "longrope" angles;
        None leaves the model's own."""
        if context is None or self.rope.kind != "longrope":
            return self
        return replace(self, rope=replace(self.rope, served_context=min(context, self.max_position)))

    @property
    def cache_variant(self) -> str:
        """Which of the model's ways of computing keys `served` chose; "" where there is only one. Cached keys of one are
        worthless to the other."""
        return "" if self.rope.kind != "longrope" else "longrope-long" if self.rope.is_long else "longrope-short"

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding and the head on one device; the last devices may use fewer."""
        return -(-self.vocab_size // self.devices)

    def shard(self, size: int) -> DecoderConfig:
        """What one of `size` devices computes of every layer: a share of the heads and of each feed-forward block. Where there
        are fewer KV heads than devices, several hold the same one.

        Raises:
            ValueError: Heads, KV heads or inner sizes cannot be divided so; says how many devices can.
        """
        reason = self._why_not(size)
        if reason:
            possible = [count for count in range(1, self.num_heads + 1) if not self._why_not(count)]
            *most, last = map(str, possible)
            counts = f"{', '.join(most)} or {last}" if most else last
            raise ValueError(f"{reason}; {counts} can compute {self.architecture} of this shape together")
        experts = self.experts and replace(self.experts, ffn_size=self.experts.ffn_size // size)
        return replace(
            self,
            num_heads=self.num_heads // size,
            num_kv_heads=max(1, self.num_kv_heads // size),
            ffn_size=self.ffn_size // size,
            experts=experts,
            devices=size,
            kv_replicas=max(1, size // self.num_kv_heads),
        )

    def _why_not(self, size: int) -> str:
        """What keeps `size` devices from sharing the work; "" if nothing does."""
        inner = [] if self.experts is not None and all(self.experts.layers) else [self.ffn_size]
        inner += [] if self.experts is None else [self.experts.ffn_size]
        for what, count in (("query heads", self.num_heads), *(("inner columns", count) for count in inner)):
            if count % size:
                return f"{count} {what} cannot be divided among {size} devices"
        if self.num_kv_heads % size and size % self.num_kv_heads:
            return (
                f"{self.num_kv_heads} KV heads can neither be divided among {size} devices nor be held by several each"
            )
        return ""

    @classmethod
    def from_hf(cls, config_json: Mapping[str, Any], *, name: str = CONFIG_NAME) -> DecoderConfig:
        """Read the contents of a config.json, in the form of transformers 4 (rope_scaling) or 5 (rope_parameters).

        Raises:
            UnsupportedModel: Another architecture, or a feature that is not implemented, by name.
            BadModelFile: A key is missing or has an impossible value; `name` is what messages call the file.
        """
        return cls(**hf_fields.parse(config_json, name))

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        *,
        tensors: Mapping[str, Sequence[int]] | None = None,
        name: str = "GGUF header",
    ) -> DecoderConfig:
        """Read the metadata of a GGUF header.

        Args:
            metadata: Keys and plain values; arrays as sequences.
            tensors: Row-major shapes by name. They decide what the metadata does not say: biases, tied embeddings, size of
                the vocabulary. Without them the family's usual form is taken.
            name: What messages call the file.

        Raises:
            UnsupportedModel, BadModelFile: As `from_hf`.
        """
        return cls(**gguf_fields.parse(metadata, tensors, name))


def read_config(files: ModelFiles, header: GGUFHeader | None = None) -> DecoderConfig:
    """The configuration of a model on disk; `header` is that of a GGUF model where it has been read already.

    Raises:
        UnsupportedModel, BadModelFile: As `DecoderConfig.from_hf`; also when config.json is missing or no JSON object.
        StorageError: The file cannot be read.
    """
    if files.format == "gguf":
        header = header or header_of(files)
        shapes = {tensor.name: tensor.shape for tensor in header.tensors.values()}
        config = DecoderConfig.from_gguf(_plain(header), tensors=shapes, name=header.name)
        return replace(config, encodings={tensor.name: tensor.type for tensor in header.tensors.values()})
    return DecoderConfig.from_hf(_read_json(files), name=CONFIG_NAME)


def _plain(header: GGUFHeader) -> dict[str, Any]:
    """Metadata with the architecture's arrays of numbers decoded; the tokenizer's large arrays are left out."""
    plain: dict[str, Any] = {}
    for key, value in header.metadata.items():
        if not isinstance(value, GGUFArray):
            plain[key] = value
        elif not key.startswith("tokenizer."):
            plain[key] = header.get_strings(key) if value.kind == STRING else header.get_numbers(key)
    return plain


def _read_json(files: ModelFiles) -> dict[str, Any]:
    path = files.paths.get(CONFIG_NAME)
    if path is None:
        raise BadModelFile(f"{files.name}: {CONFIG_NAME} is missing.")
    return read_object(path, CONFIG_NAME, most=MAX_CONFIG_BYTES)
