#!/usr/bin/env python3
"""A handful of streamed chats, and what happened to each.

Prints a `chat` event for each: the prompt's beginning, the plan, KV bytes moved, time to first token.
"""

import argparse
import json
import random
import re
import time

from common import EXPLAIN, PLAN_HEADER, error_text, openai_client
from workload import random_text

# From less than one block of KV to many.
PROMPT_TOKENS = [8, 40, 120, 300, 600, 900]
OUTPUT_TOKENS = 24


def chat(client, model: str, prompt: str) -> dict:
    start = time.monotonic()
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=OUTPUT_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=EXPLAIN,
    )
    text, usage, ttft_s = "", None, None
    for chunk in raw.parse():
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.delta.content:
                ttft_s = ttft_s or time.monotonic() - start
                text += choice.delta.content
    plan = raw.headers.get(PLAN_HEADER) or ""
    kv_bytes = re.search(r"\bkv_bytes=(\d+)", plan)
    return {
        "plan": re.sub(r"\s*\bkv_bytes=\d+", "", plan),
        "kv_bytes": int(kv_bytes[1]) if kv_bytes else None,
        "prompt_tokens": usage and usage.prompt_tokens,
        "completion_tokens": usage and usage.completion_tokens,
        "ttft_ms": ttft_s and round(ttft_s * 1000, 1),
        "total_ms": round((time.monotonic() - start) * 1000, 1),
        "text": text,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--router", required=True, help="base URL")
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    client = openai_client(args.router)
    rng = random.Random()
    failed = False
    for tokens in PROMPT_TOKENS:
        prompt = random_text(rng, tokens)
        try:
            event = chat(client, args.model, prompt)
        except Exception as error:  # shown in the chat's row
            event, failed = {"error": error_text(error)}, True
        print(json.dumps({"event": "chat", "prompt": prompt[:24], **event}), flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
