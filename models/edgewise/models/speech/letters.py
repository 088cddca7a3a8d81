"""Sounds of words that no dictionary has, by rules: the longest spelling that fits, from left to right, then stress.

A few hundred common words and names would come out right; it is for those that nobody has written down. The rules follow the
regular spellings of American English, in the manner of Elovitz et al. (1976, NRL Report 7948).
"""

from __future__ import annotations

import re
from typing import Final

_VOWELS: Final = "AIOWYaiu\u00e6\u0251\u0254\u0259\u025b\u025c\u026a\u028a\u028c"
_PRIMARY: Final = "\u02c8"

_RULES: Final = tuple(
    (re.compile(before), spelling, re.compile(after), sounds)
    for before, spelling, after, sounds in (
        *(("", f"{vowel}tion", "", f"{sound}\u0283\u0259n") for vowel, sound in zip("aeou", "AiOu", strict=True)),
        ("", "tion", "", "\u0283\u0259n"),
        ("", "ssion", "", "\u0283\u0259n"),
        ("[aeiou]$", "sion", "", "\u0292\u0259n"),
        ("", "sion", "", "\u0283\u0259n"),
        ("", "ture", "", "\u02a7\u0259\u0279"),
        ("", "cious", "", "\u0283\u0259s"),
        ("", "tious", "", "\u0283\u0259s"),
        ("", "cian", "", "\u0283\u0259n"),
        ("", "tial", "", "\u0283\u0259l"),
        ("", "cial", "", "\u0283\u0259l"),
        ("", "ious", "$", "i\u0259s"),
        ("", "ous", "$", "\u0259s"),
        ("", "ough", "t", "\u0254"),
        ("", "ough", "", "O"),
        ("", "augh", "", "\u0254"),
        ("", "eigh", "", "A"),
        ("", "igh", "", "I"),
        ("[bcdfgjkmnprstvz]$", "le", "$", "\u0259l"),
        ("", "tch", "", "\u02a7"),
        ("", "sch", "", "sk"),
        ("", "dge", "", "\u02a4"),
        ("", "chr", "", "k\u0279"),
        ("", "eau", "", "O"),
        ("", "ch", "", "\u02a7"),
        ("", "sh", "", "\u0283"),
        ("", "th", "", "\u03b8"),
        ("", "ph", "", "f"),
        ("^$", "wr", "", "\u0279"),
        ("", "wh", "", "w"),
        ("^$", "kn", "", "n"),
        ("^$", "gn", "", "n"),
        ("^$", "ps", "", "s"),
        ("^$", "x", "", "z"),
        ("", "ck", "", "k"),
        ("", "cq", "", "k"),
        ("", "ng", "$", "\u014b"),
        ("", "n", "[kg]", "\u014b"),
        ("", "mb", "$", "m"),
        ("", "qu", "", "kw"),
        ("[aeiou]$", "gh", "", ""),
        ("", "gh", "", "\u0261"),
        ("", "air", "", "\u025b\u0279"),
        ("", "are", "$", "\u025b\u0279"),
        ("", "ear", "", "\u026a\u0279"),
        ("", "eer", "", "\u026a\u0279"),
        ("", "ire", "$", "I\u0259\u0279"),
        ("", "our", "", "\u0254\u0279"),
        ("", "ore", "$", "\u0254\u0279"),
        ("", "ure", "$", "\u028a\u0279"),
        ("", "ar", "", "\u0251\u0279"),
        (".", "er", "$|s$", "\u0259\u0279"),
        ("", "er", "(?![aeiouy])", "\u025c\u0279"),
        ("", "ir", "(?![aeiouy])", "\u025c\u0279"),
        ("", "ur", "(?![aeiouy])", "\u025c\u0279"),
        ("", "or", "", "\u0254\u0279"),
        ("", "ai", "", "A"),
        ("", "ay", "", "A"),
        ("", "au", "", "\u0254"),
        ("", "aw", "", "\u0254"),
        ("", "ee", "", "i"),
        ("", "ea", "", "i"),
        ("", "ei", "", "A"),
        ("", "ey", "$", "i"),
        ("", "ey", "", "A"),
        ("", "eu", "", "ju"),
        ("", "ew", "", "u"),
        ("..", "ie", "$", "i"),
        ("^.?$", "ie", "$", "I"),
        ("", "ie", "", "i"),
        ("", "oa", "", "O"),
        ("", "oi", "", "Y"),
        ("", "oy", "", "Y"),
        ("", "oo", "", "u"),
        ("", "ou", "", "W"),
        ("", "ow", "$", "O"),
        ("", "ow", "", "W"),
        ("", "oe", "$", "O"),
        ("", "ue", "$", "u"),
        ("", "ui", "", "u"),
        ("", "a", "[^aeiouywrx](?:e|ing|er|ed)$", "A"),
        ("", "e", "[^aeiouywrx]e$", "i"),
        ("", "i", "[^aeiouywrx](?:e|ing|er|ed)$", "I"),
        ("", "o", "[^aeiouywrx](?:e|ing|er|ed)$", "O"),
        ("", "u", "[^aeiouywrx](?:e|ing|er|ed)$", "u"),
        ("", "ed", "$", "d"),
        (".*[aeiouy]", "es", "$", "z"),
        (".*[aeiouy]", "e", "$", ""),
        ("", "a", "$", "\u0259"),
        ("", "i", "$", "i"),
        ("", "o", "$", "O"),
        ("", "u", "$", "u"),
        (".*[aeiou]", "y", "$", "i"),
        ("", "y", "$", "I"),
        ("^$", "y", "[aeiou]", "j"),
        ("[aeiou]$", "y", "[aeiou]", "j"),
        ("", "y", "", "\u026a"),
        ("", "a", "[aeiou]", "A"),
        ("", "i", "[aeou]", "i"),
        ("", "o", "[^aeiouy][aeiouy]", "O"),
        ("", "u", "[^aeiouy][aeiouy]", "u"),
        ("", "a", "", "\u00e6"),
        ("", "e", "", "\u025b"),
        ("", "i", "", "\u026a"),
        ("", "o", "", "\u0251"),
        ("", "u", "", "\u028c"),
        ("", "c", "[eiy]", "s"),
        ("", "g", "[eiy]", "\u02a4"),
        ("[aeiou]$", "s", "[aeiou]", "z"),
        *(("", double * 2, "", sound) for double, sound in zip("bdfgklmnprstz", "bdf\u0261klmnp\u0279stz", strict=True)),
        ("", "cc", "[eiy]", "ks"),
        ("", "cc", "", "k"),
        *(("", one, "", sound) for one, sound in zip("bcdfghjklmnpqrstvwz", "bkdf\u0261h\u02a4klmnpk\u0279stvwz", strict=True)),
        ("", "x", "", "ks"),
    )
)  # fmt: skip
"""What stands before, the spelling, what follows, and the sounds; the first that fits is taken."""

_STRESS_BEFORE: Final = re.compile(r"(?:[ts]ion|ic|ical|ity|ian|ious|ial|ify|graphy|logy)s?$")


def sound_out(word: str) -> str:
    """Phonemes of a word of small letters, its main stress marked; other characters are passed over."""
    sounds: list[str] = []
    at = 0
    while at < len(word):
        for before, spelling, after, said in _RULES:
            if word.startswith(spelling, at) and after.match(word, at + len(spelling)) and before.search(word[:at]):
                sounds.append(said)
                at += len(spelling)
                break
        else:
            at += 1
    return stressed("".join(sounds), before_last=bool(_STRESS_BEFORE.search(word)))


def stressed(sounds: str, *, before_last: bool = False) -> str:
    """With a main stress, if there is a vowel: on the first syllable of two, else the last but two, or `before_last` but one."""
    vowels = [at for at, sound in enumerate(sounds) if sound in _VOWELS]
    if not vowels or _PRIMARY in sounds:
        return sounds
    place = max(0, len(vowels) - (2 if before_last or len(vowels) == 2 else 3))
    at = vowels[place]
    return sounds[:at] + _PRIMARY + sounds[at:]
