r"""How a byte-level vocabulary of a GGUF file splits text before merging, by the name in `tokenizer.ggml.pre`.

A GGUF header carries no pre-tokenizer, only its name. The expressions are those of the models' published tokenizer.json files:
GPT-2 (built into the tokenizers library), SmolLM2 (digits one by one, then GPT-2), Llama 3, Qwen2 and Mistral's Tekken.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Split:
    """A pre-tokenizer by name.

    Attributes:
        expression: Pieces are its matches; None takes GPT-2's.
        single_digits: Every digit is a piece of its own first.
        whole_words: A piece that is a token as it stands is taken without merging (`ignore_merges`).
        compose: Text is brought to Unicode NFC first.
        add_bos: Whether texts start with the start token when the header does not say.
    """

    expression: str | None = None
    single_digits: bool = False
    whole_words: bool = False
    compose: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        if self.expression is not None:
            split = pre_tokenizers.Split(Regex(self.expression), behavior="isolated")
            return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if self.single_digits:
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
        return gpt2

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.compose else None


_GPT2_SPLIT = Split()
_LLAMA3_SPLIT = Split(expression=_LLAMA3, whole_words=True, add_bos=True)
_QWEN2_SPLIT = Split(expression=_QWEN2, compose=True)

SPLITS: dict[str, Split] = {
    "default": _GPT2_SPLIT,
    "gpt-2": _GPT2_SPLIT,
    "smollm": Split(single_digits=True),
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
    "tekken": Split(expression=_TEKKEN, whole_words=True, add_bos=True),
}
