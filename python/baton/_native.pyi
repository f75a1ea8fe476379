from collections.abc import Sequence

def run_sglang_sidecar(argv: Sequence[str]) -> int:
    """Run SGLang's sidecar until the process is asked to stop. Answer its exit code."""
