"""Small tokenizers of every kind that models use, trained on the project's own prose and a few lines of other scripts."""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIGITS_BY_THREE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DIGITS_ALONE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
OTHER_SCRIPTS = """\
Größe, Übung und Straße; naïve café, déjà vu, mañana, Łódź, İstanbul, Ελληνικά, Привет мир, שלום עולם, مرحبا بالعالم
你好，世界。今天的天气很好。 こんにちは世界。カタカナ 안녕하세요 세계 नमस्ते दुनिया สวัสดีชาวโลก
😀 😃 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 ∑ ∫ √ ≤ ≥ → ⇒ “quoted” ‘single’ — … ½ ² ﬁ
{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}
def main(argv):\n\tif len(argv) > 1:\n\t\treturn 0\n
"""


def corpus():
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "decisions").glob("00*.md"))]
    return [page.read_text() for page in pages[:10]] + [OTHER_SCRIPTS] * 8


def special(content, **flags):
    return AddedToken(content, special=True, normalized=False, **flags)


def byte_level(pattern, names, size, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([special(name) for name in names])
    return tokenizer


def gpt2(names):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    # Blanks beside these belong to them, and one of them is looked for in the normalised text.
    tokenizer.add_special_tokens([special(name) for name in names])
    tokenizer.add_special_tokens([special("<mask>", lstrip=True), special("<right>", rstrip=True)])
    tokenizer.add_tokens([AddedToken("baton", normalized=True), AddedToken("  ", normalized=False)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def sentence_piece(scheme, names):
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if scheme == "normalizer":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=scheme != "first")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False)
    tokenizer.train_from_iterator([line for page in corpus() for line in page.splitlines()], trainer)
    if scheme == "normalizer":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([])
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens([special(name) for name in names])
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", begin)])
    return tokenizer


def unigram(names):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=700, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([line for page in corpus() for line in page.splitlines()], trainer)
    tokenizer.add_special_tokens([special(name) for name in names])
    end = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", end)])
    return tokenizer


def word_piece(names):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([special(name) for name in names])
    tokenizer.add_tokens([AddedToken("Single", single_word=True, normalized=False)])
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids)
    return tokenizer


def made():
    chat = ["<|im_start|>", "<|im_end|>", "<|bos|>", "<|eos|>"]
    dated = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    yield "bytelevel", byte_level(DIGITS_BY_THREE, chat + dated[1:], 900), {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    with_begin = byte_level(DIGITS_BY_THREE, dated, 700)
    begin = with_begin.token_to_id(dated[0])
    template = processors.TemplateProcessing(single=f"{dated[0]} $A", pair=f"{dated[0]} $A {dated[0]} $B", special_tokens=[(dated[0], begin)])
    with_begin.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    yield "digits", with_begin, {"bos_token": dated[0], "eos_token": "<|eot_id|>"}
    composed = byte_level(DIGITS_ALONE, chat[:2], 700, normalizers.NFC())
    # Tokens that only the configuration names, one of them with a space before it.
    yield "composed", composed, {"eos_token": "<|im_end|>", "pad_token": "<|pad|>", "image_token": "<|image|>", "additional_special_tokens": ["<|im_start|>", " <|odd|>"]}
    yield "gpt2", gpt2(["<|endoftext|>"]), {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    yield "metaspace-first", sentence_piece("first", ["<|user|>", "<|end|>"]), {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    yield "metaspace-always", sentence_piece("always", ["[INST]", "[/INST]"]), {"bos_token": "<s>", "eos_token": "</s>"}
    yield "prepend", sentence_piece("normalizer", ["[INST]", "[/INST]"]), {"bos_token": "<s>", "eos_token": "</s>"}
    yield "unigram", unigram(["<turn>", "<end>"]), {"eos_token": "</s>", "unk_token": "<unk>"}
    yield "wordpiece", word_piece(["[TURN]"]), {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}


def make_tokenizers(directory):
    """The tokenizers' folders by name; trained once, then kept."""
    folders = {path.name: path for path in directory.iterdir() if path.is_dir()} if directory.exists() else {}
    if folders:
        return folders
    for name, tokenizer, config in made():
        folder = directory / name
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1000000000000000019884624838656, **config}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
        folders[name] = folder
    return folders
