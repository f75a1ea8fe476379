"""What the tests share: a router, engines that are objects, and patience."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

T = TypeVar("T")

TOKEN = "a-secret-of-these-tests"

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "integration/recordings/trtllm"

# Longest that anything here may take on a machine that has a lot to do. Nothing waits for it in vain.
PATIENCE_S = 60.0


def recorded(name: str) -> Any:
    """A recording of shapes."""
    return json.loads((RECORDINGS / name).read_text())


def polls() -> list[list[dict[str, Any]]]:
    """Polls in a row: four blocks, two of them partial, of which one whole one is left."""
    return [poll["body"] for poll in recorded("kv_events_v1_polls.json")["polls"]]


def until(what: str, look: Callable[[], T | None]) -> T:
    """Look again and again until there is something to be seen."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if (seen := look()) is not None:
            return seen
        time.sleep(0.02)
    raise AssertionError(f"this did not come: {what}")


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def binary(name: str) -> str:
    """A program of this project; `cargo xtask wheel` says where they are."""
    folder = os.environ.get("BATON_BINARIES")
    if folder is None:
        raise AssertionError("BATON_BINARIES must name the folder with baton-router: run `cargo xtask wheel`")
    return str(Path(folder) / name)


class Process:
    """A program, until it is left."""

    def __init__(self, *command: str, **environment: str) -> None:
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "BATON_TOKEN": TOKEN, **environment},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def check_running(self) -> None:
        if self._process.poll() is not None:
            raise AssertionError(f"it has ended: {self.log()}")

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def get(url: str) -> Any:
    """The JSON at a URL, or nothing if it is not to be had."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.loads(answer.read())
    except (urllib.error.URLError, OSError):
        return None


def post(url: str, body: Any) -> tuple[int, Any]:
    """Status and JSON of an answer, whatever it is."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())


class WithRouter(unittest.TestCase):
    """Tests with one router for each."""

    def setUp(self) -> None:
        os.environ["BATON_TOKEN"] = TOKEN
        self.router = f"http://127.0.0.1:{self.start_router()}"

    def start_router(self) -> int:
        port = free_port()
        router = Process(binary("baton-router"), "--listen", f"127.0.0.1:{port}")
        self.addCleanup(router.stop)

        def lives() -> Any:
            router.check_running()
            return get(f"http://127.0.0.1:{port}/livez")

        until("the router", lives)
        return port

    def workers(self) -> dict[str, Any]:
        """What the router knows of each worker."""
        fleet = get(f"{self.router}/fleet")
        assert fleet is not None, "the router does not answer"
        return {worker["id"]: worker for worker in fleet["workers"]}

    def worker(self, name: str, is_so: Callable[[Any], bool]) -> Any:
        """A worker, once something is so of it."""

        def look() -> Any:
            worker = self.workers().get(name)
            return worker if worker is not None and is_so(worker) else None

        return until(f"{name} as it should be, of {list(self.workers())}", look)


def ranks(worker: Any) -> list[tuple[int, int, bool]]:
    """Rank, blocks on the device, and whether that is certain."""
    shown = worker["view"]["ranks"]
    return [(rank["rank"], rank["blocks"].get("device", 0), rank["certain"]) for rank in shown]


class Results:
    """TensorRT-LLM's `IterationResult`, as far as it is documented: what is in a queue, until nothing comes in time."""

    def __init__(self, told: queue.SimpleQueue[Any]) -> None:
        self._told = told
        self._timeout = 2.0

    def within(self, timeout: float) -> Results:
        self._timeout = timeout
        return self

    def __aiter__(self) -> Results:
        return self

    async def __anext__(self) -> Any:
        end = time.monotonic() + self._timeout
        while True:
            try:
                return self._told.get_nowait()
            except queue.Empty:
                if time.monotonic() >= end:
                    raise StopAsyncIteration from None
            await asyncio.sleep(0.005)


class FakeLLM:
    """An object with the documented signatures of TensorRT-LLM's `LLM`, which says whether it is called as it must be."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, **settings: Any) -> None:
        cache = {"tokens_per_block": 32, "event_buffer_max_size": 1024}
        cache |= settings.pop("kv_cache_config", {})
        self.args = SimpleNamespace(
            model="tiny", kv_cache_config=SimpleNamespace(**cache), max_batch_size=64, **settings
        )
        self.strange_calls: list[str] = []
        self.fault: Exception | None = None
        self.asked = 0
        self._loop = loop
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stats: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def tells(self, events: list[Any]) -> None:
        for event in events:
            self._events.put(event)

    def works(self, steps: list[Any]) -> None:
        for step in steps:
            self._stats.put(step)

    def get_kv_cache_events(self, timeout: float = 2) -> list[dict[str, Any]]:
        return self._now(self._events, timeout)

    def get_stats(self, timeout: float = 2) -> list[dict[str, Any]]:
        return self._now(self._stats, timeout)

    def get_kv_cache_events_async(self, timeout: float = 2) -> Results:
        return self._awaited(self._events, timeout)

    def get_stats_async(self, timeout: float = 2) -> Results:
        return self._awaited(self._stats, timeout)

    def _now(self, told: queue.SimpleQueue[Any], timeout: float) -> list[Any]:
        self._called()
        if self._loop is not None:
            self.strange_calls.append("not in the loop")
        results = []
        while True:
            try:
                results.append(told.get(timeout=timeout))
            except queue.Empty:
                return results

    def _awaited(self, told: queue.SimpleQueue[Any], timeout: float) -> Results:
        self._called()
        if asyncio.get_running_loop() is not self._loop:
            self.strange_calls.append("in another loop")
        return Results(told).within(timeout)

    def _called(self) -> None:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
