#!/usr/bin/env python3
"""Install unmodified vLLM with NIXL on a machine without a GPU: install.py DIRECTORY [--venv VENV]"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "common"))

from installer import Recipe, main

RECIPE = Recipe(
    folder=HERE,
    # 2.5 GB of CUDA wheels that torch declares stay away, and so does the triton that xgrammar would bring.
    check="import nixl._api, openai, torch, vllm; assert not torch.cuda.is_available()",
)

if __name__ == "__main__":
    main(RECIPE)
