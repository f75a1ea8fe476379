"""A TensorRT-LLM ``LLM`` object: what it says of itself, and what it tells only once.

Written from TensorRT-LLM's sources and documentation, in two eras (1.2, and what comes after it); never tried with a running one.
Nothing is imported from it: whatever has these methods will do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

# How long the engine may wait for something to tell. Not nothing: waiting for no time at all is answered with nothing at all
# where a queue is awaited.
PATIENCE_S = 0.05

# Longest that is listened to an engine that does not stop telling. What it tells later is told to the next question.
LONGEST_S = 1.0

# How often whoever waits for the engine's loop looks whether that is worth while.
LOOK_S = 0.2

_METHODS = {"kv_cache_events": "get_kv_cache_events", "stats": "get_stats"}


class Engine:
    """What the engine tells, asked for in its own loop if it has one."""

    def __init__(self, llm: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self._llm = llm
        self._loop = loop
        self._closed = threading.Event()

    def close(self) -> None:
        """Nobody waits for the engine any more."""
        self._closed.set()

    def take(self, what: str) -> bytes:
        """Take what the engine tells only once, as a JSON array."""
        name = _METHODS[what]
        if self._loop is None:
            told = getattr(self._llm, name)(timeout=PATIENCE_S)
        else:
            told = self._in_loop(getattr(self._llm, name + "_async"), self._loop)
        return json.dumps([_plain(element) for element in told], default=str).encode()

    def _in_loop(self, method: Any, loop: asyncio.AbstractEventLoop) -> list[Any]:
        if loop.is_closed():
            raise RuntimeError("the engine's event loop is closed")
        future = asyncio.run_coroutine_threadsafe(_collect(method), loop)
        while True:
            finished, _ = concurrent.futures.wait([future], timeout=LOOK_S)
            if finished:
                return future.result()
            if self._closed.is_set() or loop.is_closed():
                future.cancel()
                raise RuntimeError("the engine's event loop does not answer any more")


async def _collect(method: Any) -> list[Any]:
    # It is called in the loop: what it returns belongs to the loop that it was made in.
    results: AsyncIterator[Any] = method(timeout=PATIENCE_S)
    # What is left in a generator is lost with it; a plain iterator gives it to whoever asks next.
    may_leave = not inspect.isasyncgen(results)
    loop = asyncio.get_running_loop()
    until = loop.time() + LONGEST_S
    told = []
    async for element in results:
        told.append(element)
        if may_leave and loop.time() >= until:
            break
    return told


def _plain(element: Any) -> Any:
    """Some executors hand JSON on as they got it."""
    return json.loads(element) if isinstance(element, (str, bytes)) else element


def known_of(llm: Any) -> dict[str, Any]:
    """What the engine says of itself, as options of the sidecar."""
    args = getattr(llm, "args", None)
    cache = _get(args, "kv_cache_config")
    if _get(cache, "event_buffer_max_size") == 0:
        raise ValueError(
            "this LLM tells nothing of its KV cache: give it kv_cache_config=KvCacheConfig(event_buffer_max_size=8192)"
        )
    return dict(_numbers(args, cache)) | dict(_names(args))


def _numbers(args: Any, cache: Any) -> Iterator[tuple[str, int]]:
    sources = {
        "tokens_per_block": cache,
        "event_buffer_max_size": cache,
        "max_batch_size": args,
        "max_num_tokens": args,
        "max_seq_len": args,
    }
    for name, source in sources.items():
        value = _get(source, name)
        if _is_count(value):
            yield name, value
    ranks = _get(args, "tensor_parallel_size")
    if _get(args, "enable_attention_dp") is True and _is_count(ranks):
        yield "attention_dp_ranks", ranks


def _names(args: Any) -> Iterator[tuple[str, str]]:
    model = _get(args, "model")
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        is_directory = os.path.isdir(path)
        # As trtllm-serve calls it.
        yield "model", os.path.basename(os.path.normpath(path)) if is_directory else path
        if is_directory:
            yield "model_dir", path
    version = getattr(sys.modules.get("tensorrt_llm"), "__version__", None)
    if isinstance(version, str):
        yield "engine_version", version


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _get(source: Any, name: str) -> Any:
    """Settings are objects, or the dictionaries that these are made from."""
    return source.get(name) if isinstance(source, dict) else getattr(source, name, None)
