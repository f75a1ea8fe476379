"""What SGLang's ``--sidecar`` takes: ``--grpc-port PORT --sidecar baton.sglang --sidecar-args '["--router", "http://…"]'``.

SGLang starts a process of its own for it, watches it, and asks it to stop with SIGTERM when it stops itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence

from baton import _native


def main(argv: Sequence[str]) -> None:
    """Run the sidecar for the SGLang that has started this process. The arguments are those of ``baton-sidecar-sglang``."""
    if threading.current_thread() is threading.main_thread():
        # The sidecar stops in order on SIGINT. Python's own handler would add a KeyboardInterrupt behind that.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = _native.run_sglang_sidecar(list(argv))
    if code != 0:
        # SGLang stops when its sidecar fails.
        raise SystemExit(code)
