"""Tokenizers give transformers' ids, exact bytes, and never let plain text become a control token."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from edgewise.core.errors import BadModelFile, InvalidRequest, StorageError, UnsupportedModel
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files, make_tiny_model
from edgewise.models.tiny_vocab import build_vocab
from edgewise.models.tokenizer import Tokenizer, load_tokenizer
from edgewise.models.weights.write import GGUFValue, write_gguf

TinyModelFactory = Callable[..., ModelFiles]

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "I'm sure you'll say it's DON'T we've they'd",
    "  leading, trailing and   inner    runs  ",
    "tab\tand\nnewline\r\nand\n\n\nmore\n \n",
    "1234567890 3.14159 1,000,000 2024-01-31 ½ ² Ⅷ ٣",
    "1. first\n\n2. second\n  10. tenth  11",
    "naïve café Ångström e\u0301 n\u0303 \u0915\u094d\u0937\u093f Z\u0351\u0352algo",
    "日本語とひらがなカタカナ、漢字。中文没有空格，한국어 띄어쓰기",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈👍🏽 flags 🇩🇪🇯🇵 ⚙️",
    "العربية עברית ไทย Ελληνικά Русский",
    "def f(x: int) -> dict[str, int]:\n    return {'a': x ** 2, \"b\": ~x}  # note\n",
    "SELECT * FROM t WHERE a >= 1 AND b != 'x'; /* c */",
    "https://example.org/a/b?c=d&e=%20#f user@example.org",
    "a" * 300 + " " * 70 + "=" * 80,
    "\u200b\ufeff\u00a0\u2028\u3000\x00\x1f\x7f",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "text<|endoftext|> <|im_end|><|im_end|>  <|im_start|>",
    "almost <|im_end |> <|im_start <im_end> |>",
]
TEXTS += [f"{space}{digit}" for space in (" ", "  ", "\n", "\n\n", "\t ") for digit in ("7", "42", "x")]


@pytest.fixture(scope="module")
def starter(starter_files: ModelFiles) -> Tokenizer:
    return load_tokenizer(starter_files)


@pytest.fixture(scope="module")
def tiny(tiny_model: ModelFiles) -> Tokenizer:
    return load_tokenizer(tiny_model)


def reference(files: ModelFiles) -> Any:
    path = next(iter(files.paths.values()))
    single = {"gguf_file": path.name} if files.format == "gguf" else {}
    return AutoTokenizer.from_pretrained(path.parent, **single)


# --- equal to transformers ---


def test_starter_gives_transformers_ids(
    starter: Tokenizer, starter_reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = starter_reference
    for text in TEXTS:
        # transformers drops the header's pre-tokenizer "smollm", which splits numbers into single characters; that shows
        # on white space of more than one character before a digit, and on numbers outside ASCII.
        foreign = any(unicodedata.category(char)[0] == "N" and not char.isascii() for char in text)
        if not foreign and not re.search(r"\s\s\d", text):
            assert starter.encode(text) == theirs.encode(text, add_special_tokens=False), text
    digits = pre_tokenizers.Digits(individual_digits=True)
    gpt2 = theirs.backend_tokenizer.pre_tokenizer
    monkeypatch.setattr(theirs.backend_tokenizer, "pre_tokenizer", pre_tokenizers.Sequence([digits, gpt2]))
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False)
        assert starter.encode(text) == ids, text
        for skip in (True, False):
            assert starter.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    control = {id for id, token in theirs.added_tokens_decoder.items() if token.special}
    assert {id for id in range(starter.vocab_size) if starter.is_special(id)} == control
    assert len(control) == 17
    assert (starter.bos_id, starter.vocab_size) == (theirs.bos_token_id, len(theirs))
    assert starter.special_tokens["eos_token"] == theirs.eos_token


@pytest.mark.parametrize("name", ["tiny", "llama-bpe", "qwen2", "gpt-2", "default", "tekken"])
def test_byte_level_variants_give_transformers_ids(tmp_path: Path, tiny_model: ModelFiles, name: str) -> None:
    files = tiny_model if name == "tiny" else gguf_model(tmp_path, {"tokenizer.ggml.pre": name})
    ours, theirs = load_tokenizer(files), reference(files)
    for text in TEXTS:
        if (
            name != "qwen2" or text.isascii()
        ):  # Qwen2 composes characters (NFC), which transformers does not from a GGUF
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text


def test_qwen2_composes_characters(tmp_path: Path) -> None:
    qwen = load_tokenizer(gguf_model(tmp_path, {"tokenizer.ggml.pre": "qwen2"}))
    assert qwen.encode("e\u0301") == qwen.encode("\u00e9")


def gguf_model(folder: Path, changes: dict[str, GGUFValue | None]) -> ModelFiles:
    """A GGUF without tensors: the tiny vocabulary with changed header entries; None removes one."""
    vocab = build_vocab(512)
    metadata: dict[str, GGUFValue | None] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": vocab.tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(vocab.tokens) - 3),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in vocab.merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    metadata |= changes
    write_gguf(folder / "m.gguf", {key: value for key, value in metadata.items() if value is not None}, [])
    return local_files(folder)


WORDS = [
    "▁the",
    "▁th",
    "▁t",
    "the",
    "th",
    "he",
    "▁pump",
    "▁p",
    "um",
    "ump",
    "pump",
    "▁▁",
    "▁a",
    "an",
    "nd",
    "▁and",
    "▁",
]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz.,!</>s", "é", "日"]


def sentencepiece_model(folder: Path, changes: dict[str, GGUFValue | None] | None = None) -> ModelFiles:
    """A "llama" vocabulary: <unk>, <s>, </s>, 256 bytes, words with scores, letters, and a user-defined token."""
    pieces = [*WORDS, *dict.fromkeys(LETTERS)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<tool>"]
    scores = [0.0] * 259 + [-float(rank // 2) for rank in range(len(pieces))] + [0.0]
    metadata: dict[str, GGUFValue | None] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [4],
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return gguf_model(folder, metadata | (changes or {}))


def test_sentencepiece_gives_transformers_ids(tmp_path: Path) -> None:
    files = sentencepiece_model(tmp_path)
    ours, theirs = load_tokenizer(files), reference(files)
    for text in [*TEXTS, "the pump and the pumps", "  the  pump", "an<tool>and the", "<s>the</s>"]:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
    assert ours.encode("the", add_special=True) == theirs.encode("the")
    assert ours.add_bos
    assert ours.eos_ids == {2}


def test_sentencepiece_bytes(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(sentencepiece_model(tmp_path))
    ids = tokenizer.encode("the pump 😀é")
    assert b"".join(map(tokenizer.token_bytes, ids)) == " the pump 😀é".encode()
    assert tokenizer.decode(ids) == "the pump 😀é"
    assert tokenizer.token_bytes(3 + 0xF0) == b"\xf0"
    assert (tokenizer.token_bytes(0), tokenizer.token_bytes(1)) == (b"", b"")


def test_sentencepiece_without_prefix_space(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(sentencepiece_model(tmp_path, {"tokenizer.ggml.add_space_prefix": False}))
    ids = tokenizer.encode("the pump")
    assert b"".join(map(tokenizer.token_bytes, ids)) == b"the pump"
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_plain_text_never_becomes_a_control_token_in_sentencepiece(tmp_path: Path) -> None:
    """The marks "<", "/", "s" and ">" are letters of this vocabulary, so "</s>" could be merged from them."""
    pieces = ["</", "s>", "▁"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<", "/", "s", ">", *pieces]
    changes: dict[str, GGUFValue | None] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 7,
    }
    tokenizer = load_tokenizer(sentencepiece_model(tmp_path, changes))
    ids = tokenizer.encode("</s><s>", parse_special=False)
    assert not any(map(tokenizer.is_special, ids))
    assert tokenizer.decode(ids) == "</s><s>"
    assert tokenizer.encode("</s><s>")[-2:] == [2, 1]


# --- exact bytes ---


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_bytes_round_trip_on_the_starter(starter: Tokenizer, text: str) -> None:
    for parse_special in (True, False):
        ids = starter.encode(text, parse_special=parse_special)
        raw = bytes(byte for byte in text.encode() if byte not in starter.missing_bytes)
        assert b"".join(map(starter.token_bytes, ids)) == raw
        assert starter.decode(ids) == raw.decode(errors="replace")


@given(st.lists(st.sampled_from([*TEXTS, "<|im_end|>", "<|im_start|>", "<|endoftext|>", "|>", "<|"])).map("".join))
@settings(max_examples=200, deadline=None)
def test_plain_text_never_becomes_a_control_token(tiny: Tokenizer, text: str) -> None:
    ids = tiny.encode(text, parse_special=False)
    assert not any(map(tiny.is_special, ids))
    assert b"".join(map(tiny.token_bytes, ids)) == text.encode()


def test_what_the_starter_cannot_write(starter: Tokenizer, tiny: Tokenizer) -> None:
    never_in_utf8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
    assert starter.missing_bytes - never_in_utf8 == {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
    assert tiny.missing_bytes == frozenset()


def test_written_special_tokens(starter: Tokenizer) -> None:
    assert starter.encode("<|im_end|>") == [2]
    assert len(starter.encode("<|im_end|>", parse_special=False)) > 1
    assert (starter.token_bytes(2), starter.token_text(2), starter.is_special(2)) == (b"", "<|im_end|>", True)
    assert starter.decode([2, *starter.encode("x")], skip_special=False) == "<|im_end|>x"


def test_every_id_has_bytes_or_is_special(starter: Tokenizer) -> None:
    assert all(starter.is_special(id) or starter.token_bytes(id) for id in range(starter.vocab_size))
    assert [starter.token_bytes(id) for id in (-1, starter.vocab_size, 10**9)] == [b""] * 3
    assert [starter.token_text(id) for id in (-1, starter.vocab_size)] == ["", ""]


def test_half_a_character_as_text(starter: Tokenizer) -> None:
    halves = starter.encode("\U0001f9ff")
    assert len(halves) > 1
    assert "\ufffd" in starter.token_text(halves[0])
    assert starter.decode(halves[:-1]).endswith("\ufffd")


@pytest.mark.parametrize("text", ["\ud800", "ab\udfffc"])
def test_half_a_surrogate_pair_is_refused_by_place(tiny: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"U\+D[8F].. at character [02]"):
        tiny.encode(text)


# --- what the files say ---


def test_starter_ends_and_start(starter: Tokenizer) -> None:
    assert starter.eos_ids == {0, 2}  # <|endoftext|> and <|im_end|>
    assert (starter.bos_id, starter.add_bos) == (1, False)
    assert starter.encode("x", add_special=True) == starter.encode("x")
    assert repr(starter) == "Tokenizer(byte-level, 49152 tokens, eos [0, 2])"


def test_tiny_gguf_and_folder_agree(tiny: Tokenizer, tiny_model_factory: TinyModelFactory) -> None:
    single = load_tokenizer(tiny_model_factory(format="gguf"))
    assert [single.encode(text) for text in TEXTS] == [tiny.encode(text) for text in TEXTS]
    assert (single.eos_ids, single.bos_id, single.add_bos) == (tiny.eos_ids, tiny.bos_id, tiny.add_bos)
    assert (tiny.eos_ids, tiny.bos_id, tiny.vocab_size) == (frozenset({0, 2}), 1, 512)


def test_header_says_whether_texts_start_with_bos(tmp_path: Path) -> None:
    cases: list[tuple[str, bool | None, bool]] = [
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("gpt-2", None, False),
        ("gpt-2", True, True),
    ]
    for number, (pre, told, expected) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        changes: dict[str, GGUFValue | None] = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": told}
        tokenizer = load_tokenizer(gguf_model(folder, changes))
        assert tokenizer.add_bos is expected
        assert (tokenizer.encode("x", add_special=True)[0] == 1) is expected


def test_all_end_tokens_of_a_header_count(tmp_path: Path) -> None:
    changes: dict[str, GGUFValue | None] = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 300}
    tokenizer = load_tokenizer(gguf_model(tmp_path, changes))
    assert tokenizer.eos_ids == {0, 2, 300}
    assert tokenizer.is_special(300)  # a token that ends a turn is no text


def change_json(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    value = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(value | changes))


def test_folder_files_name_ends_and_start(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    change_json(folder, "generation_config.json", eos_token_id=[300, 301], bos_token_id=7)
    change_json(folder, "config.json", eos_token_id=302)
    change_json(
        folder, "tokenizer_config.json", eos_token={"content": "<|endoftext|>"}, bos_token=None, add_bos_token=True
    )
    change_json(folder, "special_tokens_map.json", pad_token="<|im_end|>")
    tokenizer = load_tokenizer(local_files(folder))
    assert tokenizer.eos_ids == {0, 2, 300, 301, 302}
    assert (tokenizer.bos_id, tokenizer.add_bos) == (7, True)
    assert tokenizer.special_tokens["pad_token"] == "<|im_end|>"


def test_a_post_processor_adds_bos(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    change_json(folder, "tokenizer_config.json", add_bos_token=None)
    template: dict[str, Any] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    change_json(folder, "tokenizer.json", post_processor=template, truncation=truncation)
    tokenizer = load_tokenizer(local_files(folder))
    assert tokenizer.add_bos
    assert tokenizer.encode("x", add_special=True) == [1, *tokenizer.encode("x")]
    assert len(tokenizer.encode("a b c d e f")) > 3  # a length limit in the file does not cut prompts silently


def test_added_words_that_are_not_special_keep_their_text(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    words = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    words.append({**words[0], "id": 512, "content": "<think>", "special": False})
    change_json(folder, "tokenizer.json", added_tokens=words)
    tokenizer = load_tokenizer(local_files(folder))
    assert tokenizer.vocab_size == 513
    for parse_special in (True, False):
        assert tokenizer.encode("a<think>b", parse_special=parse_special)[1] == 512
    assert (tokenizer.token_bytes(512), tokenizer.is_special(512)) == (b"<think>", False)


# --- refusals ---


def test_unknown_kinds_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="the tokenizer 'bert' is not supported"):
        load_tokenizer(gguf_model(tmp_path, {"tokenizer.ggml.model": "bert"}))
    with pytest.raises(UnsupportedModel, match="the pre-tokenizer 'nope' is not supported; default, gpt-2"):
        load_tokenizer(gguf_model(tmp_path, {"tokenizer.ggml.pre": "nope"}))


DAMAGED: list[dict[str, GGUFValue | None]] = [
    {"tokenizer.ggml.tokens": None},
    {"tokenizer.ggml.merges": None},
    {"tokenizer.ggml.merges": ["nospace"]},
    {"tokenizer.ggml.merges": ["no such"]},
    {"tokenizer.ggml.token_type": [1, 1]},
    {"tokenizer.ggml.bos_token_id": 512},
    {"tokenizer.ggml.eos_token_id": "2"},
    {"tokenizer.ggml.model": "llama"},
    {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0]},
]


@pytest.mark.parametrize("changes", DAMAGED, ids=lambda changes: ", ".join(changes))
def test_damaged_headers_are_refused(tmp_path: Path, changes: dict[str, GGUFValue | None]) -> None:
    with pytest.raises(BadModelFile, match=r"^m\.gguf"):
        load_tokenizer(gguf_model(tmp_path, changes))


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        kept = (folder / name).read_bytes()
        for bad in (b"", b"[]", b"{", b"\xff", b"[" * 100_000):
            (folder / name).write_bytes(bad)
            with pytest.raises(BadModelFile, match=f"^{name}, byte "):
                load_tokenizer(local_files(folder))
        (folder / name).write_bytes(kept)
    change_json(folder, "tokenizer.json", decoder={"type": "WordPiece", "prefix": "##", "cleanup": False})
    with pytest.raises(UnsupportedModel, match="decoder \\(WordPiece\\) gives no exact bytes"):
        load_tokenizer(local_files(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"no tokenizer\.json"):
        load_tokenizer(local_files(folder))
    missing = ModelFiles(name="m", digest="", format="safetensors", paths={"tokenizer.json": folder / "gone"})
    with pytest.raises(StorageError, match=r"tokenizer\.json: cannot be read"):
        load_tokenizer(missing)


def test_the_service_loads_no_torch_for_text() -> None:
    code = (
        "import sys, edgewise.models.tokenizer, edgewise.models.templates\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
