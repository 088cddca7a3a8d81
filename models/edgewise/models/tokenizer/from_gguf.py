"""A tokenizer from the header of a GGUF file.

Two kinds of vocabulary: "gpt2" (byte-level BPE with merges) and "llama" (SentencePiece BPE, where the merges follow from the
tokens' scores). Keys and token types are those of the GGUF specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.tokenizer.ends import end_ids
from edgewise.models.tokenizer.splits import SPLITS, Split
from edgewise.models.tokenizer.tokenizer import Spelling, Tokenizer
from edgewise.models.weights.gguf import GGUFHeader

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_END_ROLES = ("eos_token_id", "eot_token_id", "eom_token_id")


def tokenizer_from_header(header: GGUFHeader) -> Tokenizer:
    """Build the tokenizer that a header describes.

    Raises:
        UnsupportedModel: A vocabulary or pre-tokenizer that we do not know, by name.
        BadModelFile: The header's parts do not fit together.
    """
    kind = header.get_str("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level(_Vocabulary.read(header))
    if kind == "llama":
        return _sentencepiece(_Vocabulary.read(header))
    raise UnsupportedModel(f"{header.name}: the tokenizer {kind!r} is not supported; 'gpt2' and 'llama' are.")


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The header's lists. `types` is empty when the header has none: then every token is ordinary."""

    header: GGUFHeader
    tokens: list[str]
    types: Sequence[int | float]
    roles: dict[str, int]

    @staticmethod
    def read(header: GGUFHeader) -> _Vocabulary:
        tokens = header.get_strings("tokenizer.ggml.tokens")
        if not tokens:
            raise BadModelFile(f"{header.name}: the header has no 'tokenizer.ggml.tokens'")
        types = header.get_numbers("tokenizer.ggml.token_type") or ()
        if types and len(types) != len(tokens):
            raise BadModelFile(f"{header.name}: {len(types)} token types for {len(tokens)} tokens")
        roles: dict[str, int] = {}
        for role in (*_ROLES.values(), *_END_ROLES):
            id = header.get_int(f"tokenizer.ggml.{role}")
            if id is not None and not 0 <= id < len(tokens):
                raise BadModelFile(f"{header.name}: 'tokenizer.ggml.{role}' is {id}, there are {len(tokens)} tokens")
            if id is not None:
                roles[role] = id
        return _Vocabulary(header, tokens, types, roles)

    def ids_of(self, *types: int) -> list[int]:
        return [id for id, kind in enumerate(self.types) if kind in types]

    def by_text(self) -> dict[str, int]:
        """Token -> id; of equal tokens the first counts."""
        vocab: dict[str, int] = {}
        for id, token in enumerate(self.tokens):
            vocab.setdefault(token, id)
        return vocab

    def wrap(
        self, backend: tokenizers.Tokenizer, spelling: Spelling, *, add_bos: bool, prefix_space: bool
    ) -> Tokenizer:
        """Add control and user-defined tokens to the backend and make the tokenizer."""
        control = self.ids_of(_CONTROL)
        ends = {id for role, id in self.roles.items() if role in _END_ROLES}
        special = sorted({*control, *ends, *(id for role, id in self.roles.items() if role == "bos_token_id")})
        backend.add_special_tokens([AddedToken(self.tokens[id], normalized=False, special=True) for id in special])
        own = [self.tokens[id] for id in self.ids_of(_USER_DEFINED)]
        backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in own])
        told = self.header.get_bool("tokenizer.ggml.add_bos_token")
        return Tokenizer(
            backend,
            spelling,
            vocab_size=len(self.tokens),
            special_tokens={name: self.tokens[self.roles[role]] for name, role in _ROLES.items() if role in self.roles},
            eos_ids=ends | end_ids((id, self.tokens[id]) for id in special),
            add_bos=add_bos if told is None else told,
            prefix_space=prefix_space,
            silent_ids=self.ids_of(_UNKNOWN, _UNUSED),
        )


def _byte_level(vocabulary: _Vocabulary) -> Tokenizer:
    header = vocabulary.header
    split = _split(header)
    lines = header.get_strings("tokenizer.ggml.merges")
    if lines is None:
        raise BadModelFile(f"{header.name}: a 'gpt2' tokenizer without 'tokenizer.ggml.merges'")
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(lines):
        left, found, right = line.partition(" ")
        if not found:
            raise BadModelFile(f"{header.name}: merge {number} of 'tokenizer.ggml.merges' is {line!r}, not a pair")
        merges.append((left, right))
    model = _bpe(header, vocabulary.by_text(), merges, ignore_merges=split.whole_words)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = split.pre_tokenizer()
    normalizer = split.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    return vocabulary.wrap(backend, Spelling.BYTE_LEVEL, add_bos=split.add_bos, prefix_space=False)


def _split(header: GGUFHeader) -> Split:
    name = header.get_str("tokenizer.ggml.pre") or "default"
    split = SPLITS.get(name)
    if split is None:
        known = ", ".join(SPLITS)
        raise UnsupportedModel(f"{header.name}: the pre-tokenizer {name!r} is not supported; {known} are.")
    return split


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    header = vocabulary.header
    vocab = vocabulary.by_text()
    scores = header.get_numbers("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise BadModelFile(f"{header.name}: a 'llama' tokenizer needs one of 'tokenizer.ggml.scores' for each token")
    whole = {vocabulary.tokens[id] for id in vocabulary.ids_of(_UNKNOWN, _CONTROL, _BYTE, _UNUSED)}
    merges = _merges_by_score(vocab, scores, whole)
    unknown = vocabulary.roles.get("unknown_token_id")
    unk_token = None if unknown is None else vocabulary.tokens[unknown]
    backend = tokenizers.Tokenizer(_bpe(header, vocab, merges, byte_fallback=True, fuse_unk=True, unk_token=unk_token))
    told = header.get_bool("tokenizer.ggml.add_space_prefix")
    prefix_space = told is None or told
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="\u2581", prepend_scheme="first" if prefix_space else "never", split=False
    )
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return vocabulary.wrap(backend, Spelling.SENTENCEPIECE, add_bos=True, prefix_space=prefix_space)


def _merges_by_score(vocab: dict[str, int], scores: Sequence[int | float], whole: set[str]) -> list[tuple[str, str]]:
    """Every way to build a token from two others, best token first.

    SentencePiece merges the pair whose result has the highest score; as a list of merges that is all pairs in order of score,
    equal scores by the parts' lengths, longest first, as transformers converts such vocabularies. Tokens in `whole` (control,
    byte) are never built from text.
    """
    ranked: list[tuple[float, int, int, int, int, str, str]] = []
    for token, id in vocab.items():
        if token in whole:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab and left not in whole and right not in whole:
                ranked.append((-scores[id], -len(left), -len(right), vocab[left], vocab[right], left, right))
    ranked.sort(key=lambda entry: entry[:3])  # stable: equal ranks stay in vocabulary order
    return [(left, right) for *_, left, right in ranked]


def _bpe(
    header: GGUFHeader,
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    *,
    ignore_merges: bool = False,
    byte_fallback: bool = False,
    fuse_unk: bool = False,
    unk_token: str | None = None,
) -> models.BPE:
    options = {"ignore_merges": ignore_merges, "byte_fallback": byte_fallback, "fuse_unk": fuse_unk}
    try:
        return models.BPE(vocab=vocab, merges=merges, unk_token=unk_token, **options)
    except Exception as error:  # the library raises nothing more special for parts that do not fit
        raise BadModelFile(f"{header.name}: the vocabulary and its merges do not fit together: {error}") from error
