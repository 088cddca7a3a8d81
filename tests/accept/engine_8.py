"""On a CUDA card: the engine keeps its promises with bf16, int8 and fp8 KV pages."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files, make_tiny_model
from tests.accept.line import Line, NotRun, Verdict, main, progress

SHAPES = (
    {"family": "llama"},
    {"family": "qwen3", "heads": 6, "kv_heads": 3, "hidden": 96, "head_dim": 32},
    {"family": "qwen3_moe"},
)

Check = tuple[str, Callable[[], None]]


def checks(files: ModelFiles, folder: Path) -> Iterator[Check]:
    from tests.accept.cuda import BY_FORMAT, KV_FORMATS, ONCE

    for once in ONCE:
        yield once.__name__, partial(once, files, folder)
    for kv_dtype in KV_FORMATS:
        for check in BY_FORMAT:
            yield f"{check.__name__} ({kv_dtype})", partial(check, files, kv_dtype, folder)


def failure(check: Callable[[], None]) -> str | None:
    try:
        check()
    except AssertionError as error:
        return f"{error}\n{traceback.format_exc(limit=-2)}"
    return None


def measure(count: int) -> Verdict:
    """All checks on `count` models."""
    import torch

    if not torch.cuda.is_available():
        raise NotRun("there is no usable CUDA device")
    failed: dict[str, str] = {}
    total = 0
    for number in range(count):
        with tempfile.TemporaryDirectory() as name:
            options = SHAPES[number % len(SHAPES)]
            files = local_files(make_tiny_model(Path(name) / "model", seed=number, **options))
            for title, check in checks(files, Path(name)):
                total += 1
                progress(f"{options['family']}: {title}")
                reason = failure(check)
                if reason is not None:
                    failed[f"{options['family']}: {title}"] = reason
    device = torch.cuda.get_device_name()
    return Verdict(
        figure=f"{total - len(failed)} of {total} checks hold on {device}", passed=not failed, details=failed
    )


LINE = Line(
    number=8,
    title="On a CUDA card: the engine's promises with bf16, int8 and fp8 KV pages",
    bar="all checks hold",
    count=4,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.engine_8")
