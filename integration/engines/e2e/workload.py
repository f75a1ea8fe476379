"""Greedy requests that can be sent to the router and to the aggregated engine and then compared.

Prompts differ from their first token on: a decode engine that already holds a prompt's first block
would count those tokens as a local hit and not as transferred.
"""

import random
import string
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from common import EXPLAIN, PLAN_HEADER, Report, error_text, openai_client

# The tokenizer's ids below this are special tokens and single bytes (see make_model.py).
FIRST_WORD_TOKEN = 261
VOCABULARY = 1024
PROMPT_TOKENS = (5, 900)
OUTPUT_TOKENS = (2, 32)


@dataclass(frozen=True)
class Workload:
    """One greedy request."""

    number: int
    api: str  # "chat", "completion" (text) or "completion_ids" (token ids)
    stream: bool
    prompt: str | list[int]
    max_tokens: int


@dataclass
class Answer:
    """What must be equal, wherever the request ran, and how it ran."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    usage: tuple[int, int, int] | None = None
    plan: str | None = None
    error: str | None = None
    ttft_s: float = 0.0

    def comparable(self) -> tuple:
        return (self.text, self.token_ids, self.finish_reason, self.usage)


def random_text(rng: random.Random, tokens: int) -> str:
    """Random lower-case words. Random letters cost about two thirds of a token each."""
    words = []
    letters = 0
    while letters < tokens * 1.4 or not words:
        words.append("".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))))
        letters += len(words[-1]) + 1
    return " ".join(words)


def make_workloads(count: int, seed: int) -> list[Workload]:
    """Every kind in turn, with prompt lengths spread evenly over the whole range."""
    rng = random.Random(seed)
    kinds = [(api, stream) for api in ("chat", "completion", "completion_ids") for stream in (False, True)]
    shortest, longest = PROMPT_TOKENS
    lengths = [shortest + (longest - shortest) * i // max(count - 1, 1) for i in range(count)]
    rng.shuffle(lengths)
    workloads = []
    for number, length in enumerate(lengths):
        api, stream = kinds[number % len(kinds)]
        if api == "completion_ids":
            prompt = [rng.randrange(FIRST_WORD_TOKEN, VOCABULARY) for _ in range(length)]
        else:
            prompt = random_text(rng, length)
        workloads.append(Workload(number, api, stream, prompt, rng.randint(*OUTPUT_TOKENS)))
    return workloads


def run(
    base_url: str, model: str, workloads: list[Workload], concurrency: int, report: Report, engine
) -> list[Answer]:
    """All of them, `concurrency` at a time; answers in the order of the workloads, with tokens where the engine can."""
    client = openai_client(base_url)
    report.restart_progress()

    def one(workload: Workload) -> Answer:
        token_ids = engine.token_ids(workload.api, workload.stream)
        answer = send(client, model, workload, token_ids)
        report.progress(len(workloads))
        return answer

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, workloads))


def send(client, model: str, workload: Workload, token_ids: bool = False) -> Answer:
    """Sends one request; an error becomes part of the answer, so that all errors are counted."""
    options = {
        "model": model,
        "max_tokens": workload.max_tokens,
        "temperature": 0,
        "stream": workload.stream,
        "extra_headers": EXPLAIN,
    }
    if token_ids:
        options["extra_body"] = {"return_token_ids": True}
    if workload.stream:
        options["stream_options"] = {"include_usage": True}
    start = time.monotonic()
    try:
        if workload.api == "chat":
            messages = [{"role": "user", "content": workload.prompt}]
            raw = client.chat.completions.with_raw_response.create(messages=messages, **options)
        else:
            raw = client.completions.with_raw_response.create(prompt=workload.prompt, **options)
        read = read_stream if workload.stream else read_whole
        answer = read(raw.parse(), workload.api == "chat", start)
        answer.plan = raw.headers.get(PLAN_HEADER)
    except Exception as error:  # whatever the client raises is a failed request
        answer = Answer(error=error_text(error))
    return answer


def usage_of(usage) -> tuple[int, int, int] | None:
    """Without `prompt_tokens_details`: where cached tokens were found is all that may differ."""
    return usage and (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)


def read_whole(response, chat: bool, start: float) -> Answer:
    choice = response.choices[0]
    return Answer(
        text=(choice.message.content or "") if chat else choice.text,
        token_ids=getattr(choice, "token_ids", None) or [],
        finish_reason=choice.finish_reason,
        usage=usage_of(response.usage),
        ttft_s=time.monotonic() - start,
    )


def read_stream(chunks, chat: bool, start: float) -> Answer:
    answer = Answer()
    for chunk in chunks:
        answer.usage = usage_of(chunk.usage) or answer.usage
        for choice in chunk.choices:
            text = (choice.delta.content or "") if chat else choice.text
            # Absent from a chunk that carries none.
            tokens = getattr(choice, "token_ids", None) or []
            if (tokens or text) and not answer.ttft_s:
                answer.ttft_s = time.monotonic() - start
            answer.text += text
            answer.token_ids += tokens
            answer.finish_reason = choice.finish_reason or answer.finish_reason
    return answer
