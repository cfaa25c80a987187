"""What a Hugging Face tokenizer.json says of itself, read without the library.

Whether it can lose text (normalizer, pre-tokenizer, model, decoder), which bytes its pieces stand
for, and which of its pieces text must not produce. What is not known to keep every byte is refused
by name; `data.json_tokenizer` tries texts on top of that.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from data.marker import MARKER

WAY_OUT = (
    "Give a byte-level or byte-fallback tokenizer without that (or take it out of the file), or "
    "train one here: tokenizer=sentencepiece_32k"
)

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_KEEPING = ("Digits", "UnicodeScripts", "FixedLength")
"""Pre-tokenizers that split text and keep all of it."""

Section = dict[str, Any]


class Scheme(NamedTuple):
    """How pieces stand for bytes.

    byte_level: a character for each byte (GPT-2).  byte_fallback: pieces <0x00> to <0xFF>.
    marker: U+2581 for spaces.
    """

    byte_level: bool
    byte_fallback: bool
    marker: bool

    def bytes_of(self, piece: str) -> bytes:
        """Bytes of a piece of the model."""
        if self.byte_level:
            try:
                return piece.translate(ALPHABET).encode("latin-1")
            except UnicodeEncodeError:  # not of the alphabet: the library takes it as it is
                return piece.encode()
        if self.byte_fallback and (match := _BYTE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return (piece.replace(MARKER, " ") if self.marker else piece).encode()

    def bytes_of_added(self, content: str) -> bytes:
        """Bytes of an added token: it stands for itself."""
        return content.encode() if self.byte_level else self.bytes_of(content)


def _alphabet() -> dict[int, int]:
    """From the characters that stand for bytes in byte-level vocabularies to the bytes: printable
    Latin-1 characters for themselves, U+0100 and so on for the other bytes, in their order."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {byte: byte for byte in own} | {256 + i: byte for i, byte in enumerate(others)}


ALPHABET = _alphabet()


def scheme_of(contents: Section, name: str) -> Scheme:
    """How the pieces of this file stand for bytes.

    Raises ValueError, naming everything in it by which text may not come back.
    """
    model, decoder = contents["model"], list(_steps(contents.get("decoder"), "decoders"))
    types = [step.get("type") for step in decoder]
    scheme = Scheme(
        byte_level="ByteLevel" in types,
        byte_fallback="ByteFallback" in types,
        marker=any(_is_marker_decoder(step) for step in decoder),
    )
    problems = [
        *_model_problems(model),
        *filter(None, map(_normalizer_problem, normalizers(contents))),
        *filter(None, map(_pre_tokenizer_problem, pre_tokenizers(contents))),
        *filter(None, map(_decoder_problem, decoder)),
    ]
    if not decoder:
        problems.append("it has no decoder, so that its pieces are joined by spaces")
    if not problems:
        problems = _alphabet_problems(contents, scheme)
    if problems:
        raise ValueError(f"{name} does not give every text back: {'; '.join(problems)}. {WAY_OUT}")
    return scheme


def normalizers(contents: Section) -> list[Section]:
    """The steps of its normalizer."""
    return list(_steps(contents.get("normalizer"), "normalizers"))


def pre_tokenizers(contents: Section) -> list[Section]:
    """The steps of its pre-tokenizer."""
    return list(_steps(contents.get("pre_tokenizer"), "pretokenizers"))


def pieces_of(contents: Section) -> dict[str, int]:
    """The ids of the model's pieces."""
    vocab = contents["model"]["vocab"]
    if isinstance(vocab, dict):
        return vocab
    return {entry[0]: id for id, entry in enumerate(vocab)}


def unknown_piece(contents: Section) -> str | None:
    """The piece that stands for what the model has no piece for."""
    model = contents["model"]
    if model.get("unk_id") is not None:
        return model["vocab"][model["unk_id"]][0]
    return model.get("unk_token") or None


def has_words(contents: Section) -> bool:
    """Whether text is split into words before the model sees it."""
    steps = pre_tokenizers(contents)
    spaces_are_marked = any(map(_is_marker, normalizers(contents)))
    idle = [
        step["type"] == "Split" and step.get("pattern") == {"String": " "} and spaces_are_marked
        for step in steps
    ]
    return not all(idle)


def producible(contents: Section, pieces: set[str]) -> set[str]:
    """Those of `pieces` that the model produces if they stand in a text, letter by letter."""
    model = contents["model"]
    pieces = pieces & pieces_of(contents).keys()
    if model_type(model) == "Unigram" or model.get("ignore_merges"):
        return pieces
    merges = (m if isinstance(m, list) else m.split(" ") for m in model["merges"] if len(pieces))
    merged = {"".join(merge) for merge in merges}
    return {piece for piece in pieces if len(piece) == 1 or piece in merged}


def byte_pieces(contents: Section) -> set[str]:
    """The pieces <0x00> to <0xFF>."""
    return {piece for piece in pieces_of(contents) if _BYTE.fullmatch(piece)}


def model_type(model: Section) -> str:
    """Its type; early files do not name that of BPE."""
    return "BPE" if "merges" in model else model["type"]


def _steps(section: Section | None, key: str) -> Iterator[Section]:
    if section is None:
        return
    if section.get("type") == "Sequence":
        for step in section[key]:
            yield from _steps(step, key)
    else:
        yield section


def _is_marker(step: Section) -> bool:
    """Whether a normalizer writes spaces as U+2581 and changes nothing else."""
    return (step.get("type"), step.get("pattern"), step.get("content")) == (
        "Replace",
        {"String": " "},
        MARKER,
    )


def _is_marker_decoder(step: Section) -> bool:
    if step.get("type") == "Metaspace":
        return step.get("replacement") == MARKER
    return (step.get("type"), step.get("pattern"), step.get("content")) == (
        "Replace",
        {"String": MARKER},
        " ",
    )


def _model_problems(model: Section) -> list[str]:
    kind = model_type(model)
    if kind not in ("BPE", "Unigram"):
        return [f"its model {kind} has no piece for every text"]
    keys = ("continuing_subword_prefix", "end_of_word_suffix")
    return [f"its {key} {model[key]!r} is not part of the text" for key in keys if model.get(key)]


def _normalizer_problem(step: Section) -> str | None:
    kind = step.get("type")
    if kind == "ByteLevel" or _is_marker(step):
        return None
    if kind == "Prepend":
        return "its normalizer Prepend puts a space before the text"
    return f"its normalizer {kind} rewrites text"


def _pre_tokenizer_problem(step: Section) -> str | None:
    kind = step.get("type")
    if kind == "ByteLevel":
        prefixed = step.get("add_prefix_space", True)
    elif kind == "Metaspace":
        scheme = step.get("prepend_scheme")
        prefixed = step.get("add_prefix_space", True) if scheme is None else scheme != "never"
    else:
        prefixed = False
        if kind in ("Split", "Punctuation"):
            if step.get("behavior", "").lower() == "removed":
                return f"its pre_tokenizer {kind} removes text (behavior Removed)"
        elif kind not in _KEEPING:
            return f"its pre_tokenizer {kind} drops spaces"
    if prefixed:
        return f"its pre_tokenizer {kind} puts a space before the text (add_prefix_space)"
    return None


def _decoder_problem(step: Section) -> str | None:
    kind = step.get("type")
    if kind in ("ByteLevel", "ByteFallback", "Fuse") or _is_marker_decoder(step):
        return None
    if kind == "Strip":
        return "its decoder Strip takes away a space that was put before the text"
    return (
        f"its decoder {kind} is none of ByteLevel, ByteFallback, Metaspace, Fuse and a Replace "
        "of U+2581 by a space"
    )


def _alphabet_problems(contents: Section, scheme: Scheme) -> list[str]:
    """Bytes without a piece, and sections that do not fit one another."""
    types = [step["type"] for step in (*normalizers(contents), *pre_tokenizers(contents))]
    if ("ByteLevel" in types) != scheme.byte_level:
        return ["ByteLevel is in only one of its (pre-)tokenizer and its decoder"]
    pieces = pieces_of(contents)
    if scheme.byte_level:
        missing = sum(chr(character) not in pieces for character in ALPHABET)
    elif contents["model"].get("byte_fallback") and scheme.byte_fallback:
        missing = sum(f"<0x{byte:02X}>" not in pieces for byte in range(256))
    else:
        return ["it has neither byte-level pieces nor byte_fallback (model and decoder)"]
    return [f"{missing} of the 256 bytes have no piece"] if missing else []
