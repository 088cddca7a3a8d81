"""Loads a model in this process and prints what that took of memory: a line of JSON for `tests.accept.fast_5`.

`peak` is the greatest resident set while loading, above what the process had before (files that are mapped count as far as they
are resident); `weights` what the ledger has booked for them, `cache` likewise, both in bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.heartbeat import resident_bytes
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.models.tiny import local_files
from tests.bench.cpu_sides import peak_mib


def main() -> None:
    folder, kernels, quantize, dtype, pid = Path(sys.argv[1]), *sys.argv[2:5], "self"
    config = EngineConfig(
        model=local_files(folder),
        device="cpu",
        threads=1,
        kernels=kernels,  # type: ignore[arg-type]
        quantize=quantize,  # type: ignore[arg-type]
        dtype=dtype,  # type: ignore[arg-type]
        kv_memory_bytes=8 << 20,
        spill_bytes=0,
    )
    before = resident_bytes()
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the greatest resident set counts from here (proc(5))
    engine = build(config, lambda *_: None)
    peak = int(peak_mib(pid) * 2**20) - before
    engine.add(GenerateRequest(id="one", prompt=(5, 6, 7), sampling=SamplingParams(max_tokens=2, temperature=0.0)))
    tokens = 0
    while engine.has_work:
        tokens += sum(len(chunk.tokens) for chunk in engine.step())
    booked = engine.memory().booked
    print(
        json.dumps(
            {
                "peak": peak,
                "weights": booked["weights"],
                "cache": booked["kv_cache"],
                "after": resident_bytes() - before,
                "tokens": tokens,
                "numeric_class": engine.info.numeric_class,
            }
        )
    )


if __name__ == "__main__":
    main()
