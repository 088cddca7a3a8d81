"""llama.cpp's own server (package `xllamacpp`) in a process of its own, run by whichever interpreter has that package.

Nothing of this repository is imported here. Prints its address as a line of JSON and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import json
import sys

import xllamacpp  # type: ignore[import-not-found, unused-ignore]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens of each stream")
    args = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = args.gguf
    params.n_parallel = args.streams
    params.n_ctx = args.streams * args.context
    params.kv_unified = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.port = 0
    params.verbosity = 1  # errors only
    server = xllamacpp.Server(params)
    print(json.dumps({"url": f"{server.listening_address}/v1", "version": xllamacpp.__version__}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
