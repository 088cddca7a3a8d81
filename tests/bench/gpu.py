"""Speed on one GPU: `python -m tests.bench.gpu [--lines NAME...] [--tuned FOLDER] [--json] [--profile] [--repeat N]`.

Whole engines over random weights of a few shapes: scheduler, runner, graphs and draws. Each line is the median of repetitions
after a warm-up. Its floor is the time that the card needs to read the weights and the cache once, at the bandwidth measured in
the same run. With `--tuned` kernels are launched as the records in a folder say, and measured first where those are missing.
`peer` are vLLM 0.23.0's figures on one H200, in the faster of its two modes, measured once. Before anything is
timed, logits are compared with the reference's in float32.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from edgewise.engine.weight_choice import FP8_CAPABILITY
from edgewise.models.decoder.config import DecoderConfig
from tests.bench.gpu_check import check_shape
from tests.bench.gpu_engine import engine_of, time_batch
from tests.bench.gpu_lines import Line, lines_of
from tests.bench.gpu_shapes import SHAPES, config_of, product_weights, random_decoder

_KV_BYTES = {"bfloat16": 2.0, "int8": 1.0, "fp8": 1.0}
_WEIGHT_BYTES = {"none": 2.0, "int8": 1.0625, "int4": 0.625, "fp8": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`value` in milliseconds a step, or tokens a second; `floor` alike; `ratio` of the peer's time to ours."""

    line: str
    value: float
    spread: float
    floor: float | None
    peer: float | None
    ratio: float | None
    goal: float | None
    met: bool | None


def bandwidth() -> float:
    """Bytes a second that a large copy moves, read and written."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda").random_(0, 255)
    target = torch.empty_like(source)
    seconds = _median_seconds(lambda: target.copy_(source))
    return 2 * source.numel() / seconds


def _median_seconds(work: Callable[[], object], repeat: int = 10) -> float:
    found: list[float] = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(found)


def floor_ms(line: Line, config: DecoderConfig, rate: float) -> float:
    """Milliseconds to read all weights and the batch's keys and values once."""
    weights = product_weights(config, line.batch) * _WEIGHT_BYTES[line.weights]
    cache = 2 * config.num_layers * config.num_kv_heads * config.head_dim * _KV_BYTES[line.kv]
    return (weights + line.batch * line.context * cache) / rate * 1e3


def run(lines: Sequence[Line], *, repeat: int, profile: bool, tuned_in: Path | None = None) -> Iterator[Result]:
    """Lines of one shape, KV format and weight format share an engine; with `repeat` 0 it is only built, and so tuned."""
    rate = bandwidth()
    print(f"bandwidth {rate / 1e12:.2f} TB/s", flush=True)
    for shape, of_shape in groupby(lines, key=lambda line: line.shape):
        config = config_of(shape)
        loaded = random_decoder(config, torch.device("cuda"))
        for (kv, weights), group in groupby(of_shape, key=lambda line: (line.kv, line.weights)):
            own = list(group)
            began = time.perf_counter()
            most = max(line.batch for line in own)
            with engine_of(shape, loaded, kv_dtype=kv, max_running=most, quantize=weights, tuned_in=tuned_in) as core:
                exact = "a row's bits are its own" if core.info.batch_invariant else "bits depend on the batch"
                took = time.perf_counter() - began
                print(f"{shape} {kv} {weights}: engine built in {took:.1f} s, {exact}", flush=True)
                print(f"  {core.info.numeric_class}", flush=True)
                for line in own if repeat else ():
                    yield measure(core, line, config, rate, repeat)
                    if profile and not line.prefill:
                        profile_steps(core, line)
            del core
            gc.collect()
            torch.cuda.empty_cache()
        del loaded


def measure(core: Any, line: Line, config: DecoderConfig, rate: float, repeat: int) -> Result:
    steps = 8 if line.prefill else 64
    found = []
    for number in range(repeat + 1):
        timing = time_batch(core, batch=line.batch, context=line.context, steps=steps, seed=number)
        found.append(timing.prompt_tokens_per_s if line.prefill else timing.step_ms)
    value, floor = statistics.median(found[1:]), None if line.prefill else floor_ms(line, config, rate)
    ratio = met = None
    if line.peer is not None:
        ratio = value / line.peer if line.prefill else line.peer / value
    if line.goal is not None:
        met = value >= line.goal if line.prefill else value <= line.goal
    return Result(
        line=line.name,
        value=round(value, 4),
        spread=round((max(found[1:]) - min(found[1:])) / value, 4),
        floor=None if floor is None else round(floor, 4),
        peer=line.peer,
        ratio=None if ratio is None else round(ratio, 3),
        goal=line.goal,
        met=met,
    )


def profile_steps(core: Any, line: Line) -> None:
    """Print what the card did in 16 steps: time in kernels by name, and time without any."""
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CUDA]) as seen:
        time_batch(core, batch=line.batch, context=min(line.context, 128), steps=16, seed=999)
    events = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    late = events[len(events) // 2 :]
    busy: dict[str, list[float]] = {}
    end = gaps = 0.0
    for event in late:
        busy.setdefault(event.name, []).append(event.time_range.elapsed_us())
        gaps += max(0.0, event.time_range.start - end) if end else 0.0
        end = max(end, event.time_range.end)
    total = end - late[0].time_range.start
    print(f"profile of {line.name}: {total / 1e3:.2f} ms, without a kernel {gaps / 1e3:.2f} ms")
    for name, times in sorted(busy.items(), key=lambda pair: -sum(pair[1]))[:12]:
        print(
            f"  {sum(times) / total:6.1%} {len(times):5d} x {statistics.median(times):8.2f} us  {name[:90]}", flush=True
        )


def show(result: Result) -> str:
    unit = "tokens/s" if result.line.startswith("prefill") else "ms"
    met = {None: "", True: "met", False: "NOT MET"}[result.met]
    parts = [f"{result.line:38} {result.value:10.3f} {unit:8}", f"spread {result.spread:.1%}"]
    parts += [f"{what} {number:g}" for what, number in (("floor", result.floor), ("peer", result.peer)) if number]
    parts += [f"ratio {result.ratio:.2f}"] if result.ratio else []
    parts += [f"goal {result.goal:g} {met}"] if result.goal else []
    return "  ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lines", nargs="*", default=[], help="names, or parts of names; all lines without")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--tuned", metavar="FOLDER", type=Path, help="records of the tuner; made there where missing")
    args = parser.parse_args()
    chosen = lines_of(args.lines)
    if torch.cuda.get_device_capability() < FP8_CAPABILITY and any(line.weights == "fp8" for line in chosen):
        print("lines with weights in fp8 are left out: this card has no fp8")
        chosen = [line for line in chosen if line.weights != "fp8"]
    if not args.no_check:
        for shape in SHAPES:
            if any(line.shape == shape for line in chosen):
                check_shape(shape)
    results = []
    for result in run(chosen, repeat=args.repeat, profile=args.profile, tuned_in=args.tuned):
        print(show(result), flush=True)
        results.append(result)
        if args.json:
            report = {
                "time": time.strftime("%FT%TZ", time.gmtime()),
                "card": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "tuned": args.tuned is not None,
                "lines": [asdict(each) for each in results],
            }
            with Path(args.json).open("w", encoding="utf-8") as file:
                json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
