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


def make_encoder(folder: Path, family: str = "bert", *, pooling: str = "mean", **options: Any) -> Path:
    """A folder with config.json, model.safetensors and tokenizer.json; `options` are fields of the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    sizes = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": MAX_TOKENS + (0 if family == "bert" else 2),
        "pad_token_id": 0 if family == "bert" else 1,
        **options,
    }
    torch.manual_seed(3)
    kind = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}[family]
    network = getattr(transformers, f"{kind}Model")(
        getattr(transformers, f"{kind}Config")(**sizes), add_pooling_layer=False
    )
    with torch.no_grad():  # its own beginning is so small that nothing depends on attention
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    network.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {"pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_cls_token": pooling == "cls"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    return folder


def encoder_files(folder: Path) -> ModelFiles:
    """The folder as the store would resolve it."""
    names = ("config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json")
    paths = {name: folder / name for name in names}
    return ModelFiles(name="tiny-encoder", digest="sha256:" + "7" * 64, format="safetensors", paths=paths)


def expected(folder: Path, rows: list[list[int]], pooling: str = "mean") -> Any:
    """What sentence-transformers makes of rows of ids: transformers' states, pooled, of length one; [rows, width]."""
    network = transformers.AutoModel.from_pretrained(folder).eval()
    found = []
    with torch.inference_mode():
        for row in rows:
            states = network(input_ids=torch.tensor([row])).last_hidden_state[0]
            pooled = states.mean(0) if pooling == "mean" else states[0]
            found.append(torch.nn.functional.normalize(pooled, dim=0))
    return torch.stack(found).numpy()


def make_tokenizer() -> tokenizers.Tokenizer:
    """WordPiece of 600 tokens, trained on the prose."""
    found = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    found.train_from_iterator([PROSE.read_text()], trainers.WordPieceTrainer(vocab_size=600, special_tokens=specials))
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return found
