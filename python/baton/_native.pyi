from collections.abc import Sequence

def run_sglang_sidecar(argv: Sequence[str]) -> int:
    """Run SGLang's sidecar until the process is asked to stop. Answer its exit code."""

class Ask:
    """A question of the sidecar to the engine. It is answered once."""

    @property
    def what(self) -> str:
        """``kv_cache_events`` or ``stats``."""

    def answer(self, json: bytes) -> None:
        """What the engine has told: a JSON array."""

    def fail(self, why: str) -> None:
        """The engine has told nothing."""

class Worker:
    """A sidecar beside an engine in this process. Dropping it ends it."""

    def __new__(cls, argv: Sequence[str]) -> Worker:
        """Start the sidecar; return once routers can reach it."""

    @property
    def address(self) -> str:
        """Where routers reach it."""

    @property
    def worker_id(self) -> str:
        """Its name in the fleet."""

    def next(self) -> Ask | None:
        """Wait for the next question; none after the end."""

    def close(self) -> None:
        """Say goodbye to routers and end."""
