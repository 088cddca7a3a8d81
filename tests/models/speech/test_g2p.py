"""Sounds of words: a dictionary, what follows from it, what neighbours change, and rules for the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewise.core.errors import BadModelFile
from edgewise.models.speech.g2p import Phonemizer
from edgewise.models.speech.letters import sound_out
from edgewise.models.speech.lexicon import Entry, Lexicon, read_lexicon

P = "\u02c8"
ENTRIES: dict[str, Entry] = {
    "cat": f"k{P}\u00e6t",
    "bus": f"b{P}\u028cs",
    "dog": f"d{P}\u0254\u0261",
    "city": f"s{P}\u026a\u027ei",
    "paint": f"p{P}Ant",
    "wait": f"w{P}At",
    "jump": f"\u02a4{P}\u028cmp",
    "run": f"\u0279{P}\u028cn",
    "make": f"m{P}Ak",
    "happy": f"h{P}\u00e6pi",
    "smart": f"sm{P}\u0251\u0279t",
    "phone": f"f{P}On",
    "apple": f"{P}\u00e6p\u1d4al",
    "the": "\u00f0i",
    "to": "tu",
    "Polish": f"p{P}Ol\u026a\u0283",
    "NASA": f"n{P}\u00e6s\u0259",
    "cafe": f"k\u00e6f{P}A",
    "record": {"DEFAULT": f"\u0279{P}\u025bk\u0259\u0279d", "VERB": f"\u0279\u0259k{P}\u0254\u0279d"},
    "use": {"DEFAULT": f"j{P}uz", "NOUN": f"j{P}us"},
    "read": {"DEFAULT": f"\u0279{P}id", "VBD": f"\u0279{P}\u025bd"},
    "live": {"DEFAULT": f"l{P}Iv", "VERB": f"l{P}\u026av"},
    "A": f"{P}A",
    "I": f"{P}I",
    "P": f"p{P}i",
    "U": f"j{P}u",
    "S": f"{P}\u025bs",
}


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    return Lexicon(ENTRIES)


@pytest.mark.parametrize(
    ("word", "sounds"),
    [
        ("Cat", f"k{P}\u00e6t"),
        ("CAT", f"k{P}\u00e6t"),
        ("polish", f"p{P}Ol\u026a\u0283"),
        ("cats", f"k{P}\u00e6ts"),
        ("dogs", f"d{P}\u0254\u0261z"),
        ("buses", f"b{P}\u028cs\u1d7bz"),
        ("cities", f"s{P}\u026a\u027eiz"),
        ("dog's", f"d{P}\u0254\u0261z"),
        ("dogs'", f"d{P}\u0254\u0261z"),
        ("bus's", f"b{P}\u028cs\u1d7bz"),
        ("jumped", f"\u02a4{P}\u028cmpt"),
        ("painted", f"p{P}Ant\u1d7bd"),
        ("waited", f"w{P}A\u027e\u1d7bd"),
        ("running", f"\u0279{P}\u028cn\u026a\u014b"),
        ("making", f"m{P}Ak\u026a\u014b"),
        ("waiting", f"w{P}A\u027e\u026a\u014b"),
        ("runner", f"\u0279{P}\u028cn\u0259\u0279"),
        ("happiest", f"h{P}\u00e6pi\u0259st"),
        ("smartly", f"sm{P}\u0251\u0279tli"),
        ("smartphone", f"sm{P}\u0251\u0279tf\u02ccOn"),
        ("smart-phone", f"sm{P}\u0251\u0279tf{P}On"),
        ("caf\u00e9", f"k\u00e6f{P}A"),
        ("NASA", f"n{P}\u00e6s\u0259"),
        ("API", f"\u02ccAp\u02cci{P}I"),
        ("U-S", f"j\u02ccu{P}\u025bs"),
    ],
)
def test_words_of_the_dictionary_and_what_follows_from_them(lexicon: Lexicon, word: str, sounds: str) -> None:
    assert lexicon.pronounce(word) == sounds


@pytest.mark.parametrize(
    ("clause", "has"),
    [
        ("the cat", "\u00f0\u0259 k"),
        ("the apple", "\u00f0i "),
        ("to the cat", "t\u0259 "),
        ("to apple", "t\u028a "),
        ("wait to", "tu"),
        ("a cat", "\u0250 k"),
        ("A cat", "\u0250 k"),
        ("cat A", f"t {P}A"),
        ("to record", f"\u0259k{P}\u0254"),
        ("the record", f"\u0279{P}\u025bk"),
        ("Record the cat", f"\u0259k{P}\u0254"),
        ("the use", f"j{P}us"),
        ("I use it", f"j{P}uz"),
        ("I will read it", f"\u0279{P}id"),
        ("I have read it", f"\u0279{P}\u025bd"),
        ("I read it yesterday", f"\u0279{P}\u025bd"),
        ("where cats live", f"l{P}\u026av"),
        ("live cats", f"l{P}Iv"),
    ],
)
def test_neighbours_decide_where_a_word_has_two_sounds(lexicon: Lexicon, clause: str, has: str) -> None:
    assert has in Phonemizer(lexicon).clause(clause)


@pytest.mark.parametrize(
    ("word", "sounds"),
    [
        ("blick", f"bl{P}\u026ak"),
        ("zation", f"z{P}A\u0283\u0259n"),
        ("phight", f"f{P}It"),
        ("grume", f"\u0261\u0279{P}um"),
        ("shoop", f"\u0283{P}up"),
        ("brrr", "b\u0279\u0279"),
        ("", ""),
    ],
)
def test_what_nobody_has_written_down_is_sounded_out(word: str, sounds: str) -> None:
    assert sound_out(word) == sounds


def test_every_word_has_sounds_whatever_its_letters(lexicon: Lexicon) -> None:
    for word in ("xyzzy", "b", "rhythm", "aeiou", "Kubernetes", "o'clock", "qwen", "'", "a-b", "\u00f8re"):
        assert isinstance(lexicon.pronounce(word), str)


def test_the_better_dictionary_wins_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    good, other = tmp_path / "good.json", tmp_path / "other.json"
    good.write_text(json.dumps({"cat": "one"}))
    other.write_text(json.dumps({"cat": "two", "dog": "three"}))
    lexicon = read_lexicon(good, other)
    assert (lexicon.pronounce("cat"), lexicon.pronounce("dog")) == ("one", "three")
    other.write_text("[1]")
    with pytest.raises(BadModelFile, match=r"other\.json is no dictionary"):
        read_lexicon(good, other)
