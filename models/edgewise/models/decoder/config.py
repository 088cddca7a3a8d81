"""What a decoder looks like, read from a Hugging Face config.json or a GGUF header. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewise.core.errors import BadModelFile
from edgewise.kernels.rope_parameters import RopeParameters
from edgewise.models.decoder import gguf_fields, hf_fields
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_object
from edgewise.models.weights.gguf import GGUFArray, GGUFHeader, header_of
from edgewise.models.weights.gguf_types import STRING

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes and features of a decoder: pre-norm layers of rotary attention and a gated feed-forward block with SiLU.

    Attributes:
        architecture: "llama", "mistral", "qwen2" or "qwen3"; names the family in messages.
        ffn_size: Inner size of the feed-forward block.
        rms_eps: Added to the mean square in every norm.
        windows: Per layer, how many positions a token sees, itself included; None for all before it.
        qk_norm: Whether query and key heads are normalised before rotation.
        qkv_bias, output_bias, mlp_bias: Whether the attention input, attention output and feed-forward products add a bias.
        tied_embeddings: Whether the output head is the embedding table.
        max_position: Context in tokens that the model was made for.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
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

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise BadModelFile(
                f"{self.architecture}: {self.num_heads} query heads are no multiple of {self.num_kv_heads} KV heads."
            )
        if self.head_dim % 2:
            raise BadModelFile(f"{self.architecture}: the head size is {self.head_dim}; rotation needs an even one.")
        if len(self.windows) != self.num_layers:
            raise BadModelFile(f"{self.architecture}: {len(self.windows)} windows for {self.num_layers} layers.")

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
        return DecoderConfig.from_gguf(_plain(header), tensors=shapes, name=header.name)
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
