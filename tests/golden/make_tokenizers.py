"""Makes tokenizers.json: ids that llama.cpp gives, for two real vocabularies and for small ones under many rules.

    pip install xllamacpp gguf tokenizers
    python tests/golden/make_tokenizers.py SmolLM2-135M-Instruct.Q4_1.gguf gemma-3-270m-q4_k_m.gguf

A small vocabulary is put into a llama model of one layer, so that llama.cpp loads it; `tokenizers` only trains it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import xllamacpp

OUT = Path(__file__).with_name("tokenizers.json")
RULES = ("default", "falcon", "gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "qwen35")
TEXTS = [
    *("", " ", "  ", "Hello", " Hello", "Hello world", "  Hello  world  ", "<|im_start|>user", "</s> x", "<s>"),
    *("<end_of_turn>\n", "<|endoftext|> word", "Cafe\u0301", "Caf\u00e9", "12345", "1", "3.14159", "1,234,567"),
    *("don't", "DON'T WE'LL I'm you've it's", "'s 't", "\r\n", "\n", "\n\n", "\n\n\nfoo\n", "a\r\nb\tc", "\t\tindent"),
    *("    four", "x = [1, 2, 3];  // note", "if (a != b) { return a[i]++; }", "\U0001f638\U0001f638"),
    *("\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "你好，世界。", "こんにちは 世界", "Привет, мир!"),
    *("مرحبا بالعالم", "สวัสดี", "नमस्ते", "½ ² Ⅷ ٣", "a\u00a0b\u2003c\u3000d\u0085e", "▁lower one eighth▁▁block"),
    *(
        "<0x0A>",
        "<unk>",
        "<br><br/>§€™",
        "snake_case camelCase UPPER_CASE kebab-case",
        "https://example.org/a?b=c&d=e#f",
    ),
    *("\0\1\x7f", "\u200b\ufeff\u00ad", "e\u0301e\u0301 n\u0303", "A" * 70, "." * 33, " " * 40 + "x", "\n" * 40),
    *("==>|<== $5+~^ `tick`", "한국어 문장", "ﬁ ﬂ Ⅷ ①", "\u0130\u0131 \u017f's K's", "end. ", "tab\t\n \n  x"),
    *(
        "[multimodal] <pad><mask>",
        "The quick brown fox jumps over the lazy dog.",
        "0123456789 00 1e-9",
        "x\u2028y\u2029z",
    ),
]
TRAINING = [text.replace("\0", "") for text in TEXTS] * 2 + Path(__file__).read_text("utf-8").splitlines()
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


class LlamaCpp:
    """Tokenizes with a model file."""

    port = 18700

    def __init__(self, path: str) -> None:
        LlamaCpp.port += 1
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.port, params.warmup = path, 64, LlamaCpp.port, False
        self._server = xllamacpp.Server(params)

    def ids(self, text: str, special: bool) -> list[int]:
        body = json.dumps({"content": text, "add_special": special, "parse_special": special}).encode()
        url = self._server.listening_address + "/tokenize"
        with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as reply:
            return json.load(reply)["tokens"]


def cases(path: str) -> dict[str, Any]:
    """Ids of all texts: as plain text, and with special tokens parsed and added."""
    model = LlamaCpp(path)
    return {
        "ids": [model.ids(text, special=False) for text in TEXTS],
        "special_ids": [model.ids(text, special=True) for text in TEXTS],
    }


def train(pre: Any, size: int, special: list[str]) -> tuple[list[str], list[list[str]]]:
    """Tokens in id order, and merges."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = pre
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    model.train_from_iterator(TRAINING, trainer)
    data = json.loads(model.to_str())["model"]
    return sorted(data["vocab"], key=data["vocab"].get), data["merges"]


def bpe() -> dict[str, Any]:
    """A byte-level vocabulary with control and user-defined tokens."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<br>"]
    tokens, merges = train(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), 900, special + alphabet)
    types = [CONTROL] * 3 + [USER_DEFINED] + [NORMAL] * (len(tokens) - 4)
    return {"tokens": tokens, "token_type": types, "merges": [" ".join(merge) for merge in merges], "eos_token_id": 2}


def spm() -> dict[str, Any]:
    """A Llama 2 like vocabulary: byte tokens, pieces with falling scores."""
    special = ["<unk>", "<s>", "</s>", *BYTES, "<br>"]
    tokens, _ = train(tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always"), 900, special)
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [USER_DEFINED] + [NORMAL] * (len(tokens) - 260)
    scores = [0.0] * 260 + [-float(i) for i in range(len(tokens) - 260)]
    return {"tokens": tokens, "token_type": types, "scores": scores, "bos_token_id": 1, "eos_token_id": 2}


def write(path: str, model: str, vocabulary: dict[str, Any], **fields: Any) -> None:
    """A llama model of one layer with this vocabulary."""
    width, n = 32, len(vocabulary["tokens"])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    for key, value in {**vocabulary, **fields}.items():
        key = "tokenizer.ggml." + key
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    square = np.zeros((width, width), np.float32)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", square[0])
    writer.add_tensor("token_embd.weight", np.zeros((n, width), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(smollm2: str, gemma3: str) -> None:
    golden: dict[str, Any] = {"texts": TEXTS, "smollm2": cases(smollm2), "gemma3": cases(gemma3)}
    golden["bpe"] = {"vocabulary": bpe(), "rules": {}}
    golden["spm"] = {"vocabulary": spm(), "rules": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.gguf"))
        for rule in RULES:
            write(path, "gpt2", golden["bpe"]["vocabulary"], pre=rule, bos_token_id=1)
            golden["bpe"]["rules"][rule] = cases(path)
        for name, prefix in (("space prefix", True), ("no space prefix", False)):
            write(path, "llama", golden["spm"]["vocabulary"], add_space_prefix=prefix)
            golden["spm"]["rules"][name] = cases(path)
    OUT.write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
