"""The media process: `python -m edgewise.models.media.worker`."""

from __future__ import annotations

import importlib

from edgewise.core.confined import serve
from edgewise.core.errors import InvalidRequest
from edgewise.models.media.process import ADDRESS_SPACE_BYTES, CPU_SECONDS, JOBS, pack, unpack


def main() -> None:
    """Answer requests until standard input ends."""
    serve(answer, address_space=ADDRESS_SPACE_BYTES, cpu_s=CPU_SECONDS)


def answer(body: bytes) -> bytes:
    """One request's answer: what the job returns, or "error" and "param"."""
    request, data = unpack(body)
    param = request["param"]
    module, _, function = JOBS[request["job"]].partition(":")
    try:
        found, content = getattr(importlib.import_module(module), function)(data, param, **request["options"])
    except InvalidRequest as error:
        return pack({"error": error.message, "param": error.param}, b"")
    except MemoryError:
        needs = f"'{param}' needs more than {ADDRESS_SPACE_BYTES >> 20} MiB to decode: send less of it."
        return pack({"error": needs, "param": param}, b"")
    return pack(found, content)


if __name__ == "__main__":
    main()
