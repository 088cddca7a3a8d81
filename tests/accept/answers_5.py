"""What an int8 KV cache costs in quality and brings in capacity: float32 weights, a real text, KL against a float32 cache."""

from __future__ import annotations

from pydoc_data.topics import topics

from gguf import GGUFReader

from edgewise.engine.quality import kv_divergence
from tests.accept.line import Line, Verdict, main, progress
from tests.accept.reference import read_tokenizer
from tests.e2e.service import starter_model

MAX_KL = 0.0015
MIN_CAPACITY = 1.85
TOPICS = (
    "classes",
    "objects",
    "types",
    "exceptions",
    "execmodel",
    "naming",
    "functions",
    "import",
    "numbers",
    "strings",
)


def real_text() -> str:
    """English prose that every Python brings: chapters of the language reference."""
    return "\n\n".join(topics[name] for name in TOPICS if name in topics)


def measure(count: int) -> Verdict:
    files = starter_model()
    (path,) = files.paths.values()
    tokens = read_tokenizer(GGUFReader(path)).encode(real_text(), add_special_tokens=False).ids
    if len(tokens) < count:
        raise ValueError(f"the text has {len(tokens)} tokens, {count} are asked for")
    progress(f"{count} positions")
    quality = kv_divergence(files, tokens[:count], kv_dtype="int8")
    passed = quality.mean_kl <= MAX_KL and quality.capacity >= MIN_CAPACITY and quality.positions >= count
    figure = (
        f"KL {quality.mean_kl:.6f} over {quality.positions} positions (max {quality.max_kl:.4f}), "
        f"top token agrees {quality.agreement:.2%}, capacity {quality.capacity:.3f} x bf16"
    )
    details = {"perplexity_int8": quality.perplexity, "perplexity_float32": quality.perplexity_float32}
    return Verdict(figure=figure, passed=passed, details=details)


LINE = Line(
    number=5,
    title="int8 KV alone (float32 weights): KL to a float32 cache on a real text, and capacity at equal bytes",
    bar=f"KL <= {MAX_KL} over at least 4,000 positions; capacity >= {MIN_CAPACITY} x bf16",
    count=4096,
    small=256,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.answers_5")
