"""`baton.attach` against an object with the documented signatures of TensorRT-LLM's `LLM`, and a real router.

No TensorRT-LLM runs here: it needs a GPU.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
import unittest
from typing import Any

import baton
from support import (
    PATIENCE_S,
    ROOT,
    FakeLLM,
    WithRouter,
    free_port,
    polls,
    post,
    ranks,
    recorded,
    until,
)

# One whole block is left of what the recorded polls tell.
ONE_BLOCK = [(0, 1, True)]


def attached(llm: Any, router: str, name: str, **options: Any) -> baton.Attachment:
    """Attach at some free port. Somebody may take it first."""
    for _ in range(20):
        try:
            return baton.attach(
                llm, router, worker_id=name, listen=f"127.0.0.1:{free_port()}", log="warn", **options
            )
        except RuntimeError as error:
            if "in use" not in str(error):
                raise
    raise AssertionError("no port is free")


class View(WithRouter):
    """What routers know."""

    def test_without_a_loop_the_engine_is_asked_in_a_thread(self) -> None:
        llm = FakeLLM()
        for events in polls():
            llm.tells(events)
        llm.works(recorded("metrics_iteration_stats.json"))
        with attached(llm, self.router, "sync") as attachment:
            worker = self.worker("sync", lambda worker: ranks(worker) == ONE_BLOCK)
            self.assertEqual((worker["state"], worker["role"]), ("ready", "observed"))
            self.assertEqual(worker["address"], attachment.address)
            info = worker["info"]
            self.assertEqual((info["engine"], info["models"]), ("trtllm", ["tiny"]))
            self.assertEqual((info["block_size"], info["max_sequences"]), (32, 64))
            self.worker("sync", lambda worker: worker["load"]["free"] is not None)
        self.assertEqual(llm.strange_calls, [])

    def test_in_a_loop_the_engine_is_asked_in_that_loop(self) -> None:
        asyncio.run(self.in_a_loop())

    async def in_a_loop(self) -> None:
        loop = asyncio.get_running_loop()
        llm = FakeLLM(loop)
        async with attached(llm, [self.router], "async"):
            for events in polls():
                llm.tells(events)
            seen = lambda worker: ranks(worker) == ONE_BLOCK  # noqa: E731
            await loop.run_in_executor(None, self.worker, "async", seen)
        self.assertEqual(llm.strange_calls, [])

    def test_ranks_are_told_apart(self) -> None:
        llm = FakeLLM(enable_attention_dp=True, tensor_parallel_size=2)
        llm.tells(recorded("kv_events_attention_dp.json"))
        with attached(llm, self.router, "ranks"):
            worker = self.worker("ranks", lambda worker: len(ranks(worker)) == 2)
            self.assertEqual(worker["info"]["ranks"], 2)

    def test_events_that_the_engine_dropped_make_the_view_uncertain(self) -> None:
        llm = FakeLLM()
        llm.tells(polls()[0] + polls()[1])
        with attached(llm, self.router, "gap"):
            self.worker("gap", lambda worker: ranks(worker) == [(0, 2, True)])
            llm.tells(recorded("kv_events_overflow_gap.json")["body"])
            self.worker("gap", lambda worker: not ranks(worker)[0][2])

    def test_it_is_given_no_request_and_serves_no_model(self) -> None:
        llm = FakeLLM()
        with attached(llm, self.router, "idle"):
            self.worker("idle", lambda worker: worker["state"] == "ready")
            status, answer = post(
                f"{self.router}/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 1}
            )
            self.assertEqual((status, answer["error"]["message"]), (503, "no worker is ready"))


class Failures(WithRouter):
    """What must not become of a user's process."""

    def test_an_engine_that_raises_is_asked_again(self) -> None:
        llm = FakeLLM()
        llm.fault = AssertionError("KV Event IterationResult is not properly instantiated.")
        with attached(llm, self.router, "late"):
            self.worker("late", lambda worker: worker["state"] == "ready")
            asked = llm.asked
            until("another question", lambda: llm.asked > asked + 2 or None)
            llm.fault = None
            for events in polls():
                llm.tells(events)
            self.worker("late", lambda worker: ranks(worker) == ONE_BLOCK)

    def test_closing_says_goodbye_and_may_be_done_twice(self) -> None:
        llm = FakeLLM()
        attachment = attached(llm, self.router, "gone")
        self.worker("gone", lambda worker: worker["state"] == "ready")
        attachment.close()
        self.assertNotIn("gone", self.workers())
        attachment.close()
        self.assertFalse(attachment._asking.is_alive(), "nobody asks the engine any more")

    def test_a_loop_that_stands_still_does_not_hold_up_the_end(self) -> None:
        loop = asyncio.new_event_loop()
        self.addCleanup(loop.close)
        # It never runs, so it answers nothing.
        attachment = attached(FakeLLM(loop), self.router, "still", loop=loop)
        self.worker("still", lambda worker: worker["state"] == "ready")
        started = time.monotonic()
        attachment.close()
        self.assertFalse(attachment._asking.is_alive())
        self.assertLess(time.monotonic() - started, PATIENCE_S)

    def test_python_goes_on_while_the_sidecar_waits(self) -> None:
        with attached(FakeLLM(), self.router, "free"):
            went_on = threading.Event()
            threading.Thread(target=went_on.set).start()
            self.assertTrue(went_on.wait(PATIENCE_S))

    def test_a_process_that_just_ends_says_goodbye(self) -> None:
        script = (
            "import sys, baton\n"
            "from support import FakeLLM\n"
            "from test_attach import attached\n"
            "attached(FakeLLM(), sys.argv[1], 'script')\n"
            "sys.stdin.readline()\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script, self.router],
            cwd=ROOT / "python/tests",
            stdin=subprocess.PIPE,
        )
        assert process.stdin is not None
        try:
            self.worker("script", lambda worker: worker["state"] == "ready")
            process.stdin.close()
            self.assertEqual(process.wait(PATIENCE_S), 0)
            self.assertNotIn("script", self.workers())
        finally:
            process.kill()
            process.wait()


class Refusals(unittest.TestCase):
    """What cannot work is said at once, in a sentence."""

    def refused(self, kind: type[Exception], llm: Any, **options: Any) -> str:
        options = {"token": "a-secret-of-these-tests", "log": "warn", **options}
        with self.assertRaises(kind) as raised:
            baton.attach(llm, "http://127.0.0.1:9", **options)
        return str(raised.exception)

    def test_options_that_do_not_exist_or_have_no_such_value(self) -> None:
        self.assertIn("--wroker-id", self.refused(ValueError, FakeLLM(), wroker_id="x"))
        self.assertIn("--listen", self.refused(ValueError, FakeLLM(), listen="nowhere"))
        refused = self.refused(ValueError, FakeLLM(), listen="0.0.0.0:9100")
        self.assertIn("--advertise", refused)
        self.assertIn("BATON_TOKEN", self.refused(ValueError, FakeLLM(), token=""))

    def test_an_engine_that_tells_nothing(self) -> None:
        llm = FakeLLM(kv_cache_config={"event_buffer_max_size": 0})
        self.assertIn("event_buffer_max_size", self.refused(ValueError, llm))

    def test_a_port_that_is_taken(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            refused = self.refused(RuntimeError, FakeLLM(), listen=f"127.0.0.1:{port}")
        self.assertIn(str(port), refused)


if __name__ == "__main__":
    unittest.main()
