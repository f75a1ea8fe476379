"""What differs between engines for those who ask them: how their caches are emptied, which counters say that KV came from
elsewhere, and which answers can name their tokens.
"""

import json
import re
import urllib.request

from common import get_text


def _post(url: str) -> None:
    request = urllib.request.Request(url, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def _counter(engine: str, name: str, label: str = "") -> float:
    """Sum of a counter's samples that have this label, as it is written on the page."""
    pattern = re.compile(rf"^{name}(?:\{{([^}}]*)\}})? (\S+)$", re.MULTILINE)
    samples = pattern.findall(get_text(f"{engine}/metrics"))
    return sum(float(value) for labels, value in samples if label in labels)


class Vllm:
    # Checks of the OpenAI surface that say nothing of this engine, and why.
    LEFT_OUT = {
        "n = 2, greedy": "the engine refuses several greedy choices",
        "n = 2, greedy, streamed": "the engine refuses several greedy choices",
    }

    @staticmethod
    def reset_prefix_cache(engine: str) -> None:
        """Needs the engine's development mode."""
        _post(f"{engine}/reset_prefix_cache")

    @staticmethod
    def transferred_tokens(decode: str) -> float:
        """Prompt tokens that came by KV transfer: the only counter that tells completed transfers from failed ones."""
        return _counter(decode, "vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"')

    @staticmethod
    def token_ids(_api: str, _stream: bool) -> bool:
        """Whether such an answer can name its tokens."""
        return True


class Sglang:
    LEFT_OUT = {
        "prompt_logprobs": "the engine has no such field",
        "seed": "the engine samples by seed with --enable-deterministic-inference alone",
        "n = 2": "its two choices are sampled, and the engine samples by seed with another flag alone",
    }

    @staticmethod
    def reset_prefix_cache(engine: str) -> None:
        """Waits for requests that still end, so that it is not refused."""
        _post(f"{engine}/flush_cache?timeout=20")

    @staticmethod
    def transferred_tokens(decode: str) -> float:
        """Prompt tokens of all requests that the decode engine did not compute: it has no cache of prompts to find them in."""
        loads = json.loads(get_text(f"{decode}/v1/loads?include=all"))["loads"]
        computed = sum(load["total_prefill_uncached_tokens"] for load in loads)
        return _counter(decode, "sglang:prompt_tokens_total") - computed

    @staticmethod
    def token_ids(api: str, stream: bool) -> bool:
        """Streamed chats are refused if they ask for their tokens (0.5.23)."""
        return not (api == "chat" and stream)


ENGINES = {"vllm": Vllm, "sglang": Sglang}
