"""The gate's texts: long enough, and needles where they are said to be."""

from edgewise.models.files import ModelFiles
from edgewise.models.tokenizer import load_tokenizer
from edgewise.pipeline.gate_text import DEPTHS, built_in_text, needle_prompts


def test_the_built_in_text_is_prose() -> None:
    text = built_in_text()
    assert len(text.split()) > 4000
    assert "```" not in text
    assert text.count("|") < 10


def test_needles_lie_at_every_depth_and_length(tiny_model: ModelFiles) -> None:
    tokenizer = load_tokenizer(tiny_model)
    filler = tokenizer.encode(built_in_text()[:2000])
    made = needle_prompts(tokenizer, filler, (300, 600))
    assert len(made) == 2 * len(DEPTHS)
    for number, (prompt, answer) in enumerate(made):
        length, depth = (300, 600)[number // 3], DEPTHS[number % 3]
        assert abs(len(prompt) + len(answer) - length) <= 2
        text = tokenizer.decode(prompt)
        code = tokenizer.decode([*prompt, *answer]).split()[-1]
        assert code.isdecimal()
        assert f"is {code}." in text
        assert abs(text.index(f"is {code}.") / len(text) - depth) < 0.25
        assert not text.endswith(code)
    assert made == needle_prompts(tokenizer, filler, (300, 600))
