"""The same weights in transformers, made from the GGUF file by its own reader: what our answers are held against.

Nothing of the product is used here. Weights are dequantized by the `gguf` package; the rows of q and k are put back from
GGUF's order, which pairs rotary halves as neighbours, to the order of transformers, which keeps the halves apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
INNER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


CONTROL_TOKEN = 3  # GGUF's token type of markers such as <|im_start|>


def read_tokenizer(reader: GGUFReader) -> Tokenizer:
    """Byte-level BPE from the file's header; digits one by one, as its pre-tokenizer "smollm" says."""
    tokens, kinds, lines = (
        reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges")
    )
    merges = [tuple(line.split(" ", 1)) for line in lines]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens(control)
    return tokenizer


class Reference:
    """A float32 LlamaForCausalLM and its tokenizer."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self.config = self._read_config()
        self.tokenizer = read_tokenizer(self._reader)
        self.model = self._read_model()

    def _field(self, name: str) -> Any:
        return self._reader.fields[name].contents()

    def _read_config(self) -> LlamaConfig:
        heads, width = self._field("llama.attention.head_count"), self._field("llama.embedding_length")
        return LlamaConfig(
            vocab_size=self._field("llama.vocab_size"),
            hidden_size=width,
            intermediate_size=self._field("llama.feed_forward_length"),
            num_hidden_layers=self._field("llama.block_count"),
            num_attention_heads=heads,
            num_key_value_heads=self._field("llama.attention.head_count_kv"),
            head_dim=width // heads,
            max_position_embeddings=self._field("llama.context_length"),
            rms_norm_eps=float(self._field("llama.attention.layer_norm_rms_epsilon")),
            rope_parameters={"rope_type": "default", "rope_theta": float(self._field("llama.rope.freq_base"))},
            tie_word_embeddings=True,
            eos_token_id=None,
        )

    def _read_model(self) -> LlamaForCausalLM:
        weights = {}
        for tensor in self._reader.tensors:
            value = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            value = value.reshape(tuple(int(size) for size in tensor.shape)[::-1])
            weights[self._name(tensor.name)] = torch.from_numpy(self._ordered(tensor.name, value).copy())
        model = LlamaForCausalLM(self.config)
        missing, unexpected = model.load_state_dict(weights, strict=False)
        if unexpected or set(missing) - {"lm_head.weight"}:
            raise ValueError(f"the reference does not take these weights: missing {missing}, unexpected {unexpected}")
        model.tie_weights()
        model.train(False)
        return model

    def _name(self, name: str) -> str:
        inner = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
        return f"model.layers.{inner[1]}.{INNER[inner[2]]}.weight" if inner else OUTER[name]

    def _ordered(self, name: str, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        kind = re.fullmatch(r"blk\.\d+\.attn_([qk])\.weight", name)
        if not kind:
            return value
        heads = self.config.num_attention_heads if kind[1] == "q" else self.config.num_key_value_heads
        rows, width = value.shape
        pairs = value.reshape(int(heads or 1), -1, 2, width)
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, width)

    def chat_prompt(self, question: str) -> list[int]:
        """Token ids of one user turn in the ChatML form that the model was trained on."""
        turns = (
            f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        )
        return list(self.tokenizer.encode(turns, add_special_tokens=False).ids)

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """`count` greedy tokens after the prompt, end-of-text tokens not heeded."""
        ids = torch.tensor([list(prompt)])
        how = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
        with torch.inference_mode():
            output = self.model.generate(ids, attention_mask=torch.ones_like(ids), **how)
        return [int(token) for token in output[0, len(prompt) :]]
