"""tokenizer.json files of the usual kinds, trained on a little text in a moment."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers.trainers import BpeTrainer, UnigramTrainer

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END = "<|endoftext|>"


def gpt2(text: str) -> Tokenizer:
    """Byte-level BPE with one special token that is a piece, too, and an added one that is not
    special."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    _train_bpe(made, text[:40_000], [END])
    made.add_tokens(["<think>", AddedToken("   ", normalized=False)])
    return made


def split_by(pattern: str, text: str, **options: Any) -> Tokenizer:
    """Byte-level BPE of words split by a regular expression."""
    made = Tokenizer(models.BPE(**options))
    made.pre_tokenizer = pre.Sequence(
        [
            pre.Split(Regex(pattern), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    _train_bpe(made, text, ["<s>"])
    return made


def llama3(text: str) -> Tokenizer:
    """Byte-level BPE of Llama 3's words; whole words are looked up first."""
    numbers = "123 234 345 456 567 671 712 " * 200
    made = split_by(LLAMA3, text[:40_000] + numbers, ignore_merges=True)
    made.add_special_tokens(["<|begin|>", END, "<|fill|>"])
    return made


def gemma(text: str) -> Tokenizer:
    """BPE with byte fallback and marked spaces, of whole texts."""
    made = plain(text)
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.pre_tokenizer = pre.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    contents = json.loads(made.to_str())
    vocab = contents["model"]["vocab"]
    vocab |= {"\u2581\u2581": len(vocab), "\u2581x": len(vocab) + 1}
    contents["model"]["merges"] += [["\u2581", "\u2581"], ["\u2581", "x"]]
    made = Tokenizer.from_str(json.dumps(contents))
    made.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("\u2581\u2581\u2581")])
    return made


def plain(text: str) -> Tokenizer:
    """BPE with byte fallback, spaces as they are, of whole texts."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre.Split(Regex(r"\w+| +"), "isolated")
    learned.train_from_iterator([text[:20_000]], BpeTrainer(vocab_size=300, show_progress=False))
    contents = json.loads(learned.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    pieces += [piece for piece in contents["vocab"] if piece not in pieces]
    made = Tokenizer(
        models.BPE(
            vocab={piece: id for id, piece in enumerate(pieces)},
            merges=[tuple(pair) for pair in contents["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def unigram(text: str) -> Tokenizer:
    """Unigram with byte fallback, in words that begin with a marked space."""
    learned = Tokenizer(models.Unigram())
    learned.pre_tokenizer = pre.Metaspace(prepend_scheme="never")
    learned.train_from_iterator(
        [text[:20_000]],
        UnigramTrainer(vocab_size=300, show_progress=False, unk_token="<unk>"),
    )
    scores = dict(json.loads(learned.to_str())["model"]["vocab"])
    special = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    special += [(f"<0x{byte:02X}>", -8.0) for byte in range(256)]
    own = [(piece, score) for piece, score in scores.items() if piece != "<unk>"]
    made = Tokenizer(models.Unigram([*special, *own], unk_id=0, byte_fallback=True))
    made.pre_tokenizer = pre.Metaspace(prepend_scheme="never")
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


KINDS = {
    "gpt2": (gpt2, {"eos": END}),
    "llama3": (llama3, {"bos": "<|begin|>", "eos": END, "pad": "<|fill|>"}),
    "gemma": (gemma, {"bos": "<s>", "eos": "</s>"}),
    "plain": (plain, {"bos": "<s>", "eos": "</s>"}),
    "unigram": (unigram, {"bos": "<s>", "eos": "</s>"}),
}


def write(made: Tokenizer, folder: Path, roles: dict[str, str], **changes: Any) -> Path:
    """The file of a tokenizer, with sections changed, and tokenizer_config.json beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    contents = json.loads(made.to_str()) | changes
    path.write_text(json.dumps(contents), encoding="utf-8")
    named = {f"{role}_token": token for role, token in roles.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return path


def _train_bpe(made: Tokenizer, text: str, special: list[str]) -> None:
    trainer = BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=pre.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([text], trainer)
