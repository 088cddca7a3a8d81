"""What is said of what is written."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.models.speech.normalize import DASH, MARKS, normalize
from edgewise.models.speech.numbers import cardinal, fraction, ordinal, year
from edgewise.models.speech.sentences import sentences

SAID = {
    # numbers
    "It has 0, 7, 13, 20, 21, 100 and 1,234,567 parts.": (
        "It has zero, seven, thirteen, twenty, twenty-one, one hundred and one million two hundred thirty-four thousand five "
        "hundred sixty-seven parts."
    ),
    "3.14, .5, -5 and 1.2.3": "three point one four, point five, minus five and one point two point three",
    "the 1st, 2nd, 3rd, 12th, 23rd and 100th": "the first, second, third, twelfth, twenty-third and one hundredth",
    "1/2, 3/4 and 2 1/2 cups": "one half, three quarters and two and one half cups",
    "\u00bd cup, 2\u00bd cups": "one half cup, two and one half cups",
    "agent 007": "agent zero zero seven",
    "pages 5-10 and 5\u201310": "pages five to ten and five to ten",
    "x\u00b2 and 10\u2075": "x squared and ten to the power of five",
    "5x3, 5*3 and 5 + 3 = 8": "five by three, five times three and five plus three equals eight",
    "B2B, MP3, R2D2 and COVID-19": "B two B, MP three, R two D two and COVID nineteen",
    "Chapter IV of World War II": "Chapter four of World War two",
    # years, dates, times
    "In 1984, 1905, 1900, 2000, 2005 and 2024": (
        "In nineteen eighty-four, nineteen oh five, nineteen hundred, two thousand, two thousand five and twenty twenty-four"
    ),
    "the 1990s and the '80s": "the nineteen nineties and the eighties",
    "2024-03-05": "March fifth, twenty twenty-four",
    "3/5/2024": "March fifth, twenty twenty-four",
    "March 5, 2024": "March fifth, twenty twenty-four",
    "5 March 2024": "March fifth, twenty twenty-four",
    "On Mar. 5th we met.": "On March fifth we met.",
    "Fri., Dec. 12": "Friday, December twelfth",
    "7:30, 7:05, 7:00 and 19:45": "seven thirty, seven oh five, seven o'clock and nineteen forty-five",
    "7am, 7 p.m. and 7:30 P.M.": "seven A-M, seven P-M and seven thirty P-M.",
    "At 7:30 p.m. It rained.": "At seven thirty P-M. It rained.",
    "10:30:15": "ten thirty and fifteen seconds",
    # money, measures
    "$1,234.50": "one thousand two hundred thirty-four dollars and fifty cents",
    "$1, $0.99, $5 and $1.01": "one dollar, ninety-nine cents, five dollars and one dollar and one cent",
    "$3.5 million and \u20ac5k": "three point five million dollars and five thousand euros",
    "\u00a320 and \u00a31.50": "twenty pounds and one pound and fifty pence",
    "50% of 99.5%": "fifty percent of ninety-nine point five percent",
    "5 km, 1 kg, 10kg, 60 mph and 500MB": (
        "five kilometers, one kilogram, ten kilograms, sixty miles per hour and five hundred megabytes"
    ),
    "a 20-km run at 98.6\u00b0F": "a twenty kilometer run at ninety-eight point six degrees Fahrenheit",
    "a 5k run": "a five thousand run",
    # telephones, addresses
    "555-123-4567": "five five five, one two three, four five six seven",
    "(555) 123-4567": "five five five, one two three, four five six seven",
    "+1 555 123 4567": "plus one, five five five, one two three, four five six seven",
    "bob.smith@example.com": "bob dot smith at example dot com",
    "See https://www.example.com/a?x=1.": "See W-W-W dot example dot com slash a question mark x equals one.",
    "192.168.1.1": "one hundred ninety-two point one hundred sixty-eight point one point one",
    # abbreviations
    "Dr. Smith, Mr. Jones, Mrs. Brown and Prof. Li": "Doctor Smith, Mister Jones, Missus Brown and Professor Li",
    "He lives on Main St. The dog barks.": "He lives on Main Street. The dog barks.",
    "Visit St. Louis or Mt. Everest.": "Visit Saint Louis or Mount Everest.",
    "123 Oak Ave., Springfield": "one hundred twenty-three Oak Avenue, Springfield",
    "Elm Dr. is long. The Dr. said no.": "Elm Drive is long. The Doctor said no.",
    "fruit, e.g. apples, i.e. food": "fruit, for example, apples, that is, food",
    "No. 5, fig. 3 and p. 7": "number five, figure three and page seven",
    "The answer is No. Go home.": "The answer is No. Go home.",
    "Smith vs. Jones et al.": "Smith versus Jones et al.",
    "In the U.S. and the U.K.": "In the U-S and the U-K.",
    "He works in the U.S. They do not.": "He works in the U-S. They do not.",
    "The IT department of the US uses AI.": "The I-T department of the U-S uses A-I.",
    "ASK US NOW": "ASK US NOW",
    "w/ milk, w/o sugar and/or tea": "with milk, without sugar and or tea",
    # symbols and marks
    "A & B @ home #5 #tag 50\u00b0": "A and B at home number five hash tag fifty degrees",
    "Wait... what?! No way!!!": "Wait. what? No way!",
    '"Yes" (he said) \u2014 no': "Yes, he said\u2014 no",
    "word - another -- third": "word\u2014 another\u2014 third",
    "**Bold**, *italic*, `code` and [a link](http://x.y)": "Bold, italic, code and a link",
    "# Heading": "Heading",
    "- item": "item",
    "1. First": "one. First",
    "O\u2019Brien\u2019s caf\u00e9": "O'Brien's caf\u00e9",
    "\u03c0 and \u0394": "pi and delta",
    "": "",
}


@pytest.mark.parametrize(("written", "said"), SAID.items())
def test_it_is_said_as_people_say_it(written: str, said: str) -> None:
    reading = normalize(written)
    assert reading.text == said
    assert reading.unspoken == ""


def test_what_has_no_sound_is_named_and_the_rest_is_said() -> None:
    reading = normalize("Hi \U0001f600 \u4f60\u597d \u043f\u0440\u0438\u0432\u0435\u0442 there")
    assert reading.text == "Hi there"
    assert reading.unspoken == "\U0001f600\u4f60\u597d\u043f\u0440\u0438\u0432\u0435\u0442"


def test_numbers_of_any_length_are_words() -> None:
    assert cardinal("1000000000000000000") == "one quintillion"
    assert cardinal("1" * 30) == " ".join(["one"] * 30)
    assert [ordinal(one) for one in ("20", "31", "112")] == ["twentieth", "thirty-first", "one hundred twelfth"]
    assert [year(one) for one in ("1100", "1805", "2010", "2099")] == [
        "eleven hundred",
        "eighteen oh five",
        "twenty ten",
        "twenty ninety-nine",
    ]
    assert [fraction(*one) for one in (("1", "2"), ("3", "2"), ("5", "8"), ("7", "100"))] == [
        "one half",
        "three halves",
        "five eighths",
        "seven over one hundred",
    ]


@given(st.text(max_size=300) | st.text(alphabet="aA1.,:/-$%#@'x \n", max_size=300))
@settings(max_examples=200, deadline=None)
def test_whatever_is_written_becomes_words_and_marks(text: str) -> None:
    said, unspoken = sentences(text)
    for sentence in said:
        assert sentence.clauses
        for clause in sentence.clauses:
            assert clause.words == " ".join(clause.words.split())
            assert re.fullmatch(r"[^\W\d_]+[\w' -]*", clause.words.lstrip("'")), clause.words
            assert not any(one.isdigit() for one in clause.words)
            assert clause.mark == "" or clause.mark in MARKS + DASH
        assert sentence.clauses[-1].mark in tuple(".!?")
    assert set(unspoken) <= set(text) | set(unicodedata.normalize("NFC", text))
