"""Starts a sidecar the way SGLang 0.5.23 does (`entrypoints/sidecar.py`), with its own flags on the command line.

A process of its own by `spawn` calls the module's `main` with the arguments that SGLang does not take for itself, knows where the
gRPC server listens by a variable, and is asked to stop with SIGTERM. The exit code is the sidecar's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import signal
import sys


def run_sidecar(module: str, argv: list[str], endpoint: str) -> None:
    os.environ["SGLANG_GRPC_ENDPOINT"] = endpoint
    importlib.import_module(module).main(argv)


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", required=True)
    parser.add_argument("--grpc-port", required=True)
    parser.add_argument("--sidecar", required=True)
    parser.add_argument("--sidecar-args", type=json.loads, required=True)
    args = parser.parse_args()
    endpoint = f"http://127.0.0.1:{args.grpc_port}"
    process = multiprocessing.get_context("spawn").Process(
        target=run_sidecar, args=(args.sidecar, args.sidecar_args, endpoint)
    )
    process.start()
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    signal.signal(signal.SIGINT, lambda *_: None)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


if __name__ == "__main__":
    sys.exit(main())
