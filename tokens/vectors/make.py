#!/usr/bin/env python3
"""Makes the vectors: what vLLM 0.32.0 and its libraries make of chats and texts.

Needs the engine's Python (vllm 0.32.0, transformers, tokenizers) and no GPU; the tests that read the vectors need none of
it. Run it from anywhere: `python tokens/vectors/make.py`. With `--templates DIR` it also compares templates that are not
checked in: it writes their vectors to `DIR/vectors.json`, which the test `other_templates` reads by the variable
`BATON_TEMPLATE_VECTORS`.
"""

import argparse
import copy
import datetime
import json
import pathlib
import random
import types

HERE = pathlib.Path(__file__).resolve().parent
NOW = datetime.datetime(2025, 3, 9, 14, 5, 6)

from chats import bodies, completions, snippets, texts  # noqa: E402
from tokenizers_made import make_tokenizers  # noqa: E402


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def fix_clock():
    import transformers.utils.chat_template_utils as utils

    utils.datetime = FixedDate


def engine_settings():
    return types.SimpleNamespace(
        multimodal_config=None,
        enable_prompt_embeds=False,
        tokenizer_revision=None,
        code_revision=None,
        revision=None,
        tokenizer="made",
        model="made",
        trust_remote_code=False,
        hf_config=types.SimpleNamespace(model_type="llama"),
        max_model_len=1_000_000,
        allowed_media_domains=None,
        allowed_local_media_path="",
    )


def load(directory):
    from transformers import AutoTokenizer
    from vllm.tokenizers.hf import get_cached_tokenizer

    return get_cached_tokenizer(AutoTokenizer.from_pretrained(directory, truncation_side="left"))


def render(tokenizer, template, body):
    """The engine's own steps, from the body to the text."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers import hf
    from vllm.renderers.chat_utils import parse_chat_messages
    from vllm.renderers.params import merge_kwargs

    model = engine_settings()
    request = ChatCompletionRequest.model_validate(copy.deepcopy(body))
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    params = request.build_chat_params(template, "auto").with_defaults(merge_kwargs({}, dict(tools=tools, tokenize=False)))
    content_format = hf._detect_content_format(template, default="string")
    conversation, _, _ = parse_chat_messages(request.messages, model, content_format=content_format)
    text = hf.safe_apply_chat_template(model, tokenizer, conversation, **params.get_apply_chat_template_kwargs())
    return text, content_format, request


def tokens_of(tokenizer, request, text):
    """The engine's own steps, from the text to the tokens."""
    params = request.build_tok_params(engine_settings())
    prompt = params.apply_pre_tokenization(tokenizer, {"prompt": text})
    ids = tokenizer(prompt["prompt"], **params.get_encode_kwargs())["input_ids"]
    return params.apply_post_tokenization(tokenizer, {"prompt_token_ids": ids})["prompt_token_ids"]


def case(name, tokenizer, template, body, with_tokens):
    entry = {"name": name, "body": body}
    try:
        text, content_format, request = render(tokenizer, template, body)
        entry["text"], entry["format"] = text, content_format
        if with_tokens:
            entry["tokens"] = tokens_of(tokenizer, request, text)
    except Exception as error:  # the engine answers these with an error
        entry["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return entry


def write(path, value):
    lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in value)
    path.write_text(f"[\n{lines}\n]\n")


def make_chats(tokenizer):
    made = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        template = path.read_text()
        for name, body in bodies():
            entry = case(name, tokenizer, template, body, path.stem in ("chatml", "dated"))
            made.append({"template": path.stem, **entry})
    write(HERE / "chats.json", made)
    made = []
    for name, template, body in snippets():
        made.append({"source": template, **case(name, tokenizer, template, body, False)})
    write(HERE / "snippets.json", made)


def make_texts(directories):
    (HERE / "texts").mkdir(exist_ok=True)
    for name, directory in directories.items():
        tokenizer = load(directory)
        rng = random.Random(name)
        special = sorted(token.content for token in tokenizer.added_tokens_decoder.values())
        made = []
        for text in texts(rng, special):
            ids = tokenizer(text, add_special_tokens=True)["input_ids"]
            made.append({"text": text, "tokens": ids, "plain": tokenizer(text, add_special_tokens=False)["input_ids"]})
        write(HERE / "texts" / f"{name}.json", made)


def make_completions(directories):
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    made = []
    for name, directory in directories.items():
        tokenizer = load(directory)
        for body in completions():
            entry = {"tokenizer": name, "body": body}
            try:
                request = CompletionRequest.model_validate(copy.deepcopy(body))
                prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
                entry["tokens"] = [tokens_of(tokenizer, request, prompt) for prompt in prompts]
            except Exception as error:  # the engine answers these with an error
                entry["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            made.append(entry)
    write(HERE / "completions.json", made)


def make_other(directory, tokenizer):
    made = []
    for path in sorted(pathlib.Path(directory).rglob("*.jinja")):
        template = path.read_text()
        entries = [case(name, tokenizer, template, body, False) for name, body in bodies()]
        made.append({"template": path.name, "source": template, "cases": entries})
    write(pathlib.Path(directory) / "vectors.json", made)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--templates", help="a folder of further *.jinja files")
    arguments = parser.parse_args()
    fix_clock()
    directories = make_tokenizers(HERE / "tokenizers")
    chat_tokenizer = load(directories["bytelevel"])
    if arguments.templates:
        make_other(arguments.templates, chat_tokenizer)
        return
    make_chats(chat_tokenizer)
    make_texts(directories)
    make_completions(directories)


if __name__ == "__main__":
    main()
