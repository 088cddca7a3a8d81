"""Tokenizers of models, from a GGUF header or a Hugging Face folder. No torch, no transformers."""

from edgewise.models.tokenizer.load import load_tokenizer
from edgewise.models.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]
