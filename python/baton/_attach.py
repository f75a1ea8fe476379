"""``baton.attach``: a sidecar beside an ``LLM`` in the same process."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from baton import _native
from baton._engine import Engine, known_of

_log = logging.getLogger("baton")

# Longest to wait for the engine's last answer once nobody wants it any more.
_LAST_ANSWER_S = 5.0


def attach(
    llm: Any,
    router: str | Sequence[str],
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    **options: Any,
) -> Attachment:
    """Tell routers what an ``LLM`` of TensorRT-LLM holds in its KV cache and how busy it is.

    The engine is asked in ``loop``, which must be the one that its requests are made in; by default the one that runs where this
    is called. Where none runs, it is asked by its methods that need none. Nobody else may take its KV events or statistics.

    ``options`` are those of a sidecar with underscores: ``worker_id="w0"``, ``listen="10.0.0.5:9100"``, ``token=…``,
    ``log="warn"``. What the engine says of itself need not be given. BATON_* variables count, as everywhere.

    Raises ``ValueError`` for what cannot work and ``RuntimeError`` for what did not. Later nothing is raised: whatever goes wrong
    with the engine or the network is logged, and the engine is left alone.
    """
    if loop is None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            pass
    routers = [router] if isinstance(router, str) else list(router)
    settings = {**known_of(llm), **options, "router": routers}
    return Attachment(_native.Worker(list(_flags(settings))), Engine(llm, loop))


def _flags(settings: dict[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            yield flag
            continue
        values = value if isinstance(value, (list, tuple)) else [value]
        yield from (f"{flag}={one}" for one in values)


class Attachment:
    """A sidecar beside an engine, until it is closed. Closed by itself at the end of a ``with`` block and of the process."""

    def __init__(self, worker: _native.Worker, engine: Engine) -> None:
        self._worker = worker
        self._engine = engine
        self._asking = threading.Thread(target=self._answer, name="baton-attach", daemon=True)
        self._asking.start()
        atexit.register(self.close)

    @property
    def worker_id(self) -> str:
        """Its name in the fleet."""
        return self._worker.worker_id

    @property
    def address(self) -> str:
        """Where routers reach its sidecar."""
        return self._worker.address

    def close(self) -> None:
        """Say goodbye to routers and end. The engine goes on. Does nothing the second time."""
        atexit.unregister(self.close)
        self._engine.close()
        self._worker.close()
        self._asking.join(_LAST_ANSWER_S)

    async def aclose(self) -> None:
        """The same for whoever may not block the engine's loop."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Attachment:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _answer(self) -> None:
        """Answer the sidecar's questions until it has none any more. The engine's failures are answers, too."""
        while (ask := self._worker.next()) is not None:
            try:
                told = self._engine.take(ask.what)
            except Exception as error:  # noqa: BLE001
                _log.debug("the engine does not tell its %s", ask.what, exc_info=True)
                ask.fail(f"{type(error).__name__}: {error}")
            else:
                ask.answer(told)
