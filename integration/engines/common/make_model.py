#!/usr/bin/env python3
"""Make the tiny model that the real engines serve: make_model.py OUT_DIR

A random Llama with a byte-level BPE tokenizer and a chat template. Nothing is downloaded, and the same
weights come out on every machine. What matters about it:

- Greedy text must not depend on how requests were batched, or no two runs could be compared. Hence
  float32, wide weights (large gaps between the first and the second logit, sharp attention).
- The text must depend on every block of the prompt's KV, or wrong KV would go unnoticed. Sharp
  attention over random values gives that too.
- End-of-sequence never comes by itself, so a request ends where it asks to.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL_TOKENS = ["<|bos|>", "<|eos|>", "<|pad|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 1024
CONTEXT_LENGTH = 4096
SEED = 20261130

# ChatML with tools: their schemas go into the system turn, calls and results into turns of their own.
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
tools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}
{%- elif message['content'] %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}
{%- if message['tool_calls'] %}{% for call in message['tool_calls'] %} {{ call['function'] | tojson }}{% endfor %}{% endif %}
{%- if message['tool_call_id'] %} (for {{ message['tool_call_id'] }}){% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def training_text() -> list[str]:
    """Sentences, code, JSON and made-up words: enough for merges that shorten ordinary text."""
    sentences = [
        "the router sends the prompt to a prefill engine and the answer comes from a decode engine",
        "a block of the key value cache holds the keys and values of thirty two tokens",
        "hello, how are you today? I would like to know the weather in Paris and in London.",
        '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}',
        '{"role": "user", "content": "hi"}',
        "def main():\n    for i in range(10):\n        print(i, 'hello')\n",
        "zero one two three four five six seven eight nine ten eleven twelve",
    ]
    syllables = [c + v + end for c in "bcdfghklmnprstvz" for v in "aeiou" for end in ("", "n", "r", "s", "t")]
    made_up = [
        " ".join(
            syllables[(line * 7 + word * (1 + line % 11)) % len(syllables)]
            + syllables[(line + word * 13) % len(syllables)]
            for word in range(40)
        )
        for line in range(200)
    ]
    return sentences * 20 + made_up


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        pad_token="<|pad|>",
        model_max_length=CONTEXT_LENGTH,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_weights(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=CONTEXT_LENGTH,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=False,
            initializer_range=0.2,
        )
    ).to(torch.float32)
    with torch.no_grad():
        # A zero row is a zero logit: far below the best of a thousand random ones.
        model.lm_head.weight[: len(SPECIAL_TOKENS)] = 0.0
    return model


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(out)
    make_weights(tokenizer).save_pretrained(out)


if __name__ == "__main__":
    main()
