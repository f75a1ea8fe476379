"""What the end-to-end clients share: how they report, and how they reach the router.

Each client is a program of its own. It prints one JSON object a line for `cargo xtask e2e` to read and
exits 0 only if every check held:

    {"event": "progress", "done": 12, "total": 300}
    {"event": "check", "name": "chat streams", "ok": true, "detail": "split prefill=..."}
    {"event": "figure", "name": "stable prompts", "value": 300, "unit": "of 300"}
"""

import json
import sys
import threading
import urllib.request

from openai import OpenAI

# A request that has not ended by then hangs, which is a finding and not slowness: the longest one
# here takes a few seconds on one busy core.
REQUEST_TIMEOUT_S = 120.0

PLAN_HEADER = "baton-plan"
EXPLAIN = {"baton-explain": "1"}


class Report:
    """Prints events as they happen and remembers whether a check failed. Safe to use from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed = 0
        self._checks = 0
        self._done = 0

    def _print(self, event: dict) -> None:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()

    def progress(self, total: int) -> None:
        """One more of `total` steps is done."""
        with self._lock:
            self._done += 1
            self._print({"event": "progress", "done": self._done, "total": total})

    def restart_progress(self) -> None:
        with self._lock:
            self._done = 0

    def check(self, name: str, ok: bool, detail: str = "") -> bool:
        with self._lock:
            self._checks += 1
            self._failed += not ok
            self._print({"event": "check", "name": name, "ok": bool(ok), "detail": detail})
        return ok

    def skipped(self, name: str, reason: str) -> None:
        """Something that is not looked at, and why."""
        with self._lock:
            self._print({"event": "skipped", "name": name, "reason": reason})

    def figure(self, name: str, value: float, unit: str) -> None:
        with self._lock:
            self._print({"event": "figure", "name": name, "value": value, "unit": unit})

    def exit(self) -> None:
        """A client that checked nothing has proved nothing."""
        sys.exit(0 if self._checks and not self._failed else 1)


def openai_client(base_url: str) -> OpenAI:
    """The official client, without its own retries: a request that failed once must be seen."""
    return OpenAI(base_url=f"{base_url}/v1", api_key="unused", max_retries=0, timeout=REQUEST_TIMEOUT_S)


def get_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def error_text(error: Exception) -> str:
    """One line of an exception, for a check's detail."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:400]
