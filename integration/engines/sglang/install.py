#!/usr/bin/env python3
"""Install unmodified SGLang with NIXL on a machine without a GPU: install.py DIRECTORY [--venv VENV]"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "common"))

from installer import Recipe, main

RECIPE = Recipe(
    folder=HERE,
    # 2.5 GB of CUDA wheels that torch declares stay away, and 1.2 GB of kernels that no CPU can run.
    check="import nixl._api, openai, sgl_kernel, torch, sglang.srt.entrypoints.http_server",
    environment={"PYTHONPATH": str(HERE / "shims"), "SGLANG_USE_CPU_ENGINE": "1"},
)

if __name__ == "__main__":
    main(RECIPE)
