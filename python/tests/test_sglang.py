"""`baton.sglang` as SGLang starts it, beside an emulated SGLang, with a real router."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import unittest

from support import PATIENCE_S, ROOT, TOKEN, Process, WithRouter, binary, free_port, get, post, until

LIKE_SGLANG = str(ROOT / "python/tests/like_sglang.py")


class Hook(WithRouter):
    """The sidecar is found by itself, serves, and ends when it is asked to."""

    def setUp(self) -> None:
        super().setUp()
        self.port = free_port()
        engine = Process(binary("baton-emulated-sglang"), "--port", str(self.port))
        self.addCleanup(engine.stop)

        def lives() -> object:
            engine.check_running()
            return get(f"http://127.0.0.1:{self.port}/server_info")

        until("the emulated engine", lives)

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        server = subprocess.Popen(
            [
                sys.executable,
                LIKE_SGLANG,
                f"--port={self.port}",
                "--grpc-port=1",
                "--sidecar=baton.sglang",
                "--sidecar-args",
                json.dumps(argv),
            ],
            env={**os.environ, "BATON_TOKEN": TOKEN},
            # What a terminal sends reaches all of them.
            start_new_session=True,
        )
        self.addCleanup(server.wait)
        self.addCleanup(lambda: server.poll() is None and os.killpg(server.pid, signal.SIGKILL))
        return server

    def serving(self, name: str) -> subprocess.Popen[bytes]:
        listen = f"127.0.0.1:{free_port()}"
        server = self.start("--worker-id", name, "--router", self.router, "--listen", listen)
        self.worker(name, lambda worker: worker["state"] == "ready")
        return server

    def test_it_serves_and_ends_when_sglang_ends(self) -> None:
        server = self.serving("s0")
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 4}
        status, answer = post(f"{self.router}/v1/completions", body)
        self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 4))
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(PATIENCE_S), 0)
        self.assertNotIn("s0", self.workers())

    def test_control_c_ends_it_in_order(self) -> None:
        server = self.serving("s1")
        os.killpg(server.pid, signal.SIGINT)
        self.assertEqual(server.wait(PATIENCE_S), 0)
        self.assertNotIn("s1", self.workers())

    def test_what_cannot_work_fails_with_the_codes_of_the_daemon(self) -> None:
        self.assertEqual(self.start("--no-such-flag").wait(PATIENCE_S), 64)
        self.assertEqual(self.start("--help").wait(PATIENCE_S), 0)


if __name__ == "__main__":
    unittest.main()
