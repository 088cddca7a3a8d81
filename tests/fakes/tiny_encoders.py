"""Encoders of texts with random weights, a few hundred kilobytes each, as transformers and tokenizers write them."""

from __future__ import annotations

import json
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers as untyped_transformers
from tokenizers import models, pre_tokenizers, processors, trainers

from edgewise.models.files import ModelFiles

transformers: Any = untyped_transformers
WIDTH = 64
MAX_TOKENS = 48
PROSE = Path(str(package_files("edgewise.pipeline") / "gate_text.txt"))


KINDS = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "mpnet": "MPNet",
    "modernbert": "ModernBert",
    "nomic_bert": "NomicBert",
    "gte": "Gte",
}
"""What transformers calls the classes of a model type."""
_LEAVES_OUT = ("roberta", "xlm-roberta", "mpnet")
"""These leave out the first two rows of their table of positions."""


def make_encoder(folder: Path, family: str = "bert", *, pooling: str = "mean", **options: Any) -> Path:
    """A folder with config.json, model.safetensors and tokenizer.json; `options` are fields of the configuration."""
    network = _network(family, "Model", options)
    _save(network, folder)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {"pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_cls_token": pooling == "cls"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    return folder


def make_cross_encoder(folder: Path, family: str = "bert", **options: Any) -> Path:
    """The same of a model that gives pairs of texts one number."""
    _save(_network(family, "ForSequenceClassification", {"num_labels": 1, **options}), folder)
    return folder


def _network(family: str, what: str, options: dict[str, Any]) -> Any:
    sizes = {
        "vocab_size": make_tokenizer().get_vocab_size(),
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": MAX_TOKENS + (2 if family in _LEAVES_OUT else 0),
        "pad_token_id": 1 if family in _LEAVES_OUT else 0,
        **(
            {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
            if family == "modernbert"
            else {}
        ),
        **options,
    }
    if family == "distilbert":
        ours = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
        sizes |= {theirs: sizes.pop(name) for theirs, name in ours.items()} | {
            "hidden_dim": sizes.pop("intermediate_size")
        }
    config = getattr(transformers, f"{KINDS[family]}Config")(**sizes)
    network = getattr(transformers, KINDS[family] + what)(config)
    # Every number is drawn here: transformers' own beginning is so small that nothing depends on attention, and a load elsewhere
    # in the process may have switched it off.
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.08, generator=draw)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1, generator=draw)
            else:
                parameter.fill_(1.0)
    return network


def _save(network: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    network.save_pretrained(folder)
    make_tokenizer(tells_apart=network.config.model_type == "bert").save(str(folder / "tokenizer.json"))


def encoder_files(folder: Path) -> ModelFiles:
    """The folder as the store would resolve it."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return ModelFiles(name="tiny-encoder", digest="sha256:" + "7" * 64, format="safetensors", paths=paths)


def expected(folder: Path, rows: list[list[int]], pooling: str = "mean") -> Any:
    """What sentence-transformers makes of rows of ids: transformers' states, pooled, of length one; [rows, width]."""
    network = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    found = []
    with torch.inference_mode():
        for row in rows:
            states = network(input_ids=torch.tensor([row])).last_hidden_state[0]
            pooled = states.mean(0) if pooling == "mean" else states[0]
            found.append(torch.nn.functional.normalize(pooled, dim=0))
    return torch.stack(found).numpy()


def expected_scores(folder: Path, query: str, documents: list[str], most: int) -> Any:
    """What sentence-transformers' CrossEncoder makes of pairs, before the sigmoid: [documents].

    Its tokenizer is transformers', which cuts what is too long.
    """
    network = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    named = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    typed = network.config.model_type == "bert"
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if typed else [])]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), model_input_names=names, **named
    )
    found = []
    with torch.inference_mode():
        for document in documents:
            read = tokenizer([query], [document], truncation=True, max_length=most, return_tensors="pt")
            found.append(network(**read).logits[0, 0])
    return torch.stack(found).numpy()


def make_tokenizer(*, tells_apart: bool = True) -> tokenizers.Tokenizer:
    """WordPiece of 600 tokens, trained on the prose.

    Args:
        tells_apart: Whether tokens of a pair's second text have a type of their own, as BERT's have.
    """
    found = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    found.train_from_iterator([PROSE.read_text()], trainers.WordPieceTrainer(vocab_size=600, special_tokens=specials))
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1" if tells_apart else "[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return found
