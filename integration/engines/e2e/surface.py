#!/usr/bin/env python3
"""The OpenAI surface through the router, with the official client, against one aggregated engine.

Each check sends the same deterministic request to both and compares what they answered; where it matters,
it also asks the router which plan it took.
"""

import argparse
import random
import time

from common import EXPLAIN, PLAN_HEADER, Report, error_text, openai_client
from engines import ENGINES
from workload import random_text, usage_of

LOGPROB_TOLERANCE = 1e-3
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "strict": True,
        "parameters": {
            "type": "object",
            # Only choices: a random model would never close a string.
            "properties": {"city": {"enum": ["Paris", "London"]}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class Surface:
    """One side: sends requests, and keeps the plan of the latest where there was one."""

    def __init__(self, base_url: str, model: str) -> None:
        self.client = openai_client(base_url)
        self.model = model
        self.plan: str | None = None

    def _create(self, endpoint, **options):
        options = {"model": self.model, "temperature": 0, "max_tokens": 16, "extra_headers": EXPLAIN} | options
        raw = endpoint.with_raw_response.create(**options)
        self.plan = raw.headers.get(PLAN_HEADER)
        return raw.parse()

    def chat(self, content: str | list[dict], **options):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self._create(self.client.chat.completions, messages=messages, **options)

    def complete(self, prompt, **options):
        return self._create(self.client.completions, prompt=prompt, **options)


def chat_choices(response) -> list[tuple]:
    return [(c.index, c.message.content, c.finish_reason) for c in response.choices]


def completion_choices(response) -> list[tuple]:
    return [(c.index, c.text, c.finish_reason) for c in response.choices]


def chat(side: Surface, text: str):
    response = side.chat(text)
    return chat_choices(response), usage_of(response.usage)


def completion(side: Surface, text: str):
    response = side.complete(text)
    return completion_choices(response), usage_of(response.usage)


def chat_stream(side: Surface, text: str):
    """Also: the role comes first, and without `include_usage` no chunk has usage."""
    chunks = list(side.chat(text, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant", "the first chunk names no role"
    assert not any(chunk.usage for chunk in chunks), "usage that nobody asked for"
    return (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        chunks[-1].choices[0].finish_reason,
    )


def completion_stream(side: Surface, text: str):
    chunks = list(side.complete(text, stream=True))
    return "".join(chunk.choices[0].text for chunk in chunks), chunks[-1].choices[0].finish_reason


def usage_in_stream(side: Surface, text: str):
    chunks = list(side.chat(text, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage, "the last chunk has no usage"
    return usage_of(chunks[-1].usage)


def usage_in_every_chunk(side: Surface, text: str):
    """How many tokens share a chunk is a matter of time; that none is lost is not."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(side.complete(text, stream=True, stream_options=options))
    completion_tokens = [chunk.usage.completion_tokens for chunk in chunks]
    assert completion_tokens == sorted(completion_tokens), f"usage goes back: {completion_tokens}"
    return usage_of(chunks[-1].usage)


def middle_of(text: str) -> str:
    """Characters in which to stop: not before the middle, so that prefill's own token cannot end the request."""
    middle = len(text) // 2
    return next(text[at : at + 3] for at in range(middle, len(text) - 2) if text.index(text[at : at + 3]) >= middle)


def stop_string(side: Surface, text: str):
    """Stops in the middle of what it would otherwise say."""
    stop = middle_of(side.complete(text, max_tokens=24).choices[0].text)
    response = side.complete(text, max_tokens=24, stop=[stop])
    assert response.choices[0].finish_reason == "stop", f"did not stop at {stop!r}"
    return completion_choices(response), usage_of(response.usage)


def stop_string_stream(side: Surface, text: str):
    stop = middle_of(side.chat(text, max_tokens=24).choices[0].message.content)
    chunks = list(side.chat(text, max_tokens=24, stop=[stop], stream=True))
    assert chunks[-1].choices[0].finish_reason == "stop", f"did not stop at {stop!r}"
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def stop_at_first_token(side: Surface, text: str):
    """Prefill ends by end-of-sequence and not by length."""
    response = side.complete(text, logit_bias={"1": 100})
    assert response.choices[0].finish_reason == "stop"
    return completion_choices(response), usage_of(response.usage)


def completion_logprobs(side: Surface, text: str):
    logprobs = side.complete(text, logprobs=3).choices[0].logprobs
    return logprobs.tokens, logprobs.token_logprobs, [sorted(top) for top in logprobs.top_logprobs]


def chat_logprobs(side: Surface, text: str):
    entries = side.chat(text, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    return [(entry.token, entry.logprob, [top.token for top in entry.top_logprobs]) for entry in entries]


def seed(side: Surface, text: str):
    response = side.complete(text, temperature=1.0, top_p=0.9, seed=7, max_tokens=24)
    return completion_choices(response)


def named_tool_choice(side: Surface, text: str):
    choice = {"type": "function", "function": {"name": "get_weather"}}
    response = side.chat(text, tools=[WEATHER_TOOL], tool_choice=choice, max_tokens=400)
    calls = response.choices[0].message.tool_calls
    assert calls and calls[0].function.name == "get_weather", "no call of the named tool"
    return [(call.type, call.function.name, call.function.arguments) for call in calls], usage_of(response.usage)


def named_tool_choice_stream(side: Surface, text: str):
    choice = {"type": "function", "function": {"name": "get_weather"}}
    chunks = side.chat(text, tools=[WEATHER_TOOL], tool_choice=choice, max_tokens=400, stream=True)
    calls = [call for chunk in chunks for c in chunk.choices for call in c.delta.tool_calls or []]
    names = [call.function.name for call in calls if call.function.name]
    assert names == ["get_weather"], f"named {names}"
    return "".join(call.function.arguments or "" for call in calls)


def tool_conversation(side: Surface, text: str):
    call = {"id": "call-1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": text},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "sunny"},
    ]
    return chat_choices(side.chat(messages))


def json_schema(side: Surface, text: str):
    schema = {"name": "weather", "schema": WEATHER_TOOL["function"]["parameters"]}
    return chat_choices(side.chat(text, response_format={"type": "json_schema", "json_schema": schema}, max_tokens=400))


def one_token(side: Surface, text: str):
    return completion_choices(side.complete(text, max_tokens=1)), chat_choices(side.chat(text, max_tokens=1))


def two_choices(side: Surface, text: str):
    response = side.chat(text, n=2, temperature=1.0, seed=11)
    assert len(response.choices) == 2
    return sorted(chat_choices(response)), usage_of(response.usage)


def two_greedy_choices(side: Surface, text: str):
    response = side.chat(text, n=2)
    assert len(response.choices) == 2
    return sorted(chat_choices(response)), usage_of(response.usage)


def two_greedy_choices_stream(side: Surface, text: str):
    texts = ["", ""]
    for chunk in side.complete(text, n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    return texts


def batch_of_prompts(side: Surface, text: str):
    response = side.complete([text, text[::-1], text[5:]])
    assert len(response.choices) == 3
    return sorted(completion_choices(response)), usage_of(response.usage)


def echo(side: Surface, text: str):
    response = side.complete(text, echo=True)
    assert response.choices[0].text.startswith(text), "the prompt does not come first"
    return completion_choices(response), usage_of(response.usage)


def echo_with_logprobs(side: Surface, text: str):
    logprobs = side.complete(text, echo=True, logprobs=1).choices[0].logprobs
    return logprobs.tokens, logprobs.token_logprobs


def prompt_logprobs(side: Surface, text: str):
    choice = side.complete(text, extra_body={"prompt_logprobs": 0}).choices[0]
    assert choice.prompt_logprobs, "no prompt_logprobs"
    return len(choice.prompt_logprobs), choice.text


def models(side: Surface, _text: str):
    return [model.id for model in side.client.models.list().data]


def client_leaves(side: Surface, text: str):
    """Closes a stream after its third chunk; whether anything is left behind is seen in the in-flight gauges."""
    stream = side.chat(text, max_tokens=400, stream=True)
    for _ in zip(range(3), stream):
        pass
    stream.close()


# The plan each must have under `--force split`; None: it has none, or either is right.
CHECKS = [
    ("models", models, None),
    ("chat", chat, "split"),
    ("chat, streamed", chat_stream, "split"),
    ("completion", completion, "split"),
    ("completion, streamed", completion_stream, "split"),
    ("usage in streams", usage_in_stream, "split"),
    ("usage in every chunk", usage_in_every_chunk, "split"),
    ("stop strings", stop_string, "split"),
    ("stop strings, streamed", stop_string_stream, "split"),
    ("prefill ends by end-of-sequence", stop_at_first_token, None),
    ("logprobs of completions", completion_logprobs, "split"),
    ("logprobs of chats", chat_logprobs, "split"),
    ("seed", seed, "split"),
    ("named tool_choice", named_tool_choice, "split"),
    ("named tool_choice, streamed", named_tool_choice_stream, "split"),
    ("conversation with tool results", tool_conversation, "split"),
    ("json_schema", json_schema, "split"),
    ("echo", echo, None),
    ("client leaves in mid-stream", client_leaves, "split"),
    ("max_tokens 1", one_token, "local"),
    ("n = 2", two_choices, "local"),
    ("n = 2, greedy", two_greedy_choices, "local"),
    ("n = 2, greedy, streamed", two_greedy_choices_stream, "local"),
    ("batch of prompts", batch_of_prompts, "local"),
    ("echo with logprobs", echo_with_logprobs, "local"),
    ("prompt_logprobs", prompt_logprobs, "local"),
]


def same(got, expected) -> bool:
    """Equal, but for the last digits of logprobs: sums in another order."""
    if isinstance(got, float) and isinstance(expected, float):
        return abs(got - expected) <= LOGPROB_TOLERANCE
    if isinstance(got, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(got) == len(expected) and all(map(same, got, expected))
    return got == expected


def compare(report: Report, name: str, ask, plan: str | None, text: str, sides: tuple[Surface, Surface]) -> None:
    router, aggregated = sides
    start = time.monotonic()
    try:
        expected = ask(aggregated, text)
        got = ask(router, text)
    except Exception as error:  # a refused request, a broken stream, a wrong shape: all are findings
        report.check(name, False, error_text(error))
        return
    if not same(got, expected):
        report.check(name, False, f"{got} instead of {expected}")
    elif plan and not (router.plan or "").startswith(plan):
        report.check(name, False, f"the plan was {router.plan}, not {plan}")
    else:
        report.check(name, True, f"{router.plan or 'no plan'}, {time.monotonic() - start:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--router", required=True, help="base URL")
    parser.add_argument("--aggregated", required=True, help="base URL of the reference engine")
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine-kind", choices=ENGINES, default="vllm")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    args = parser.parse_args()
    report = Report()
    rng = random.Random(args.seed)
    sides = (Surface(args.router, args.model), Surface(args.aggregated, args.model))
    left_out = ENGINES[args.engine_kind].LEFT_OUT
    for name, ask, plan in CHECKS:
        text = random_text(rng, 100)
        if name in left_out:
            report.skipped(name, left_out[name])
        else:
            compare(report, name, ask, plan, text, sides)
        report.progress(len(CHECKS))
    report.exit()


if __name__ == "__main__":
    main()
