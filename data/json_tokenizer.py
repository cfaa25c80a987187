"""A Hugging Face tokenizer.json that loses nothing: byte-level BPE, or BPE or unigram with byte
fallback.

The file stays what it is but for what would lose or add something: truncation, padding, BPE dropout
and the post-processor are switched off. Strings of special tokens in a text are ordinary text: they
are never matched (`encode_special_tokens`), and where the model itself would produce such a piece,
the text is cut after its first character. Other added tokens are ordinary pieces.

Saved as tokenizer.json with special_tokens_map.json beside it, which names bos, eos and pad; the
fingerprint covers both.
"""

import json
import os
import re
import unicodedata
from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes share the work; threads warn at forks

import numpy as np
import tokenizers

from data.cutting import PART_CHARACTERS, adjacent_pairs, cut_text, first_cut
from data.json_format import (
    WAY_OUT,
    Scheme,
    Section,
    byte_pieces,
    has_words,
    pieces_of,
    producible,
    scheme_of,
    unknown_piece,
)
from data.marker import ESCAPE, MARKER, escape, unescape
from data.special_tokens import ROLES, added_tokens, find_roles, token_map
from data.tokenizer import FILES, PROBES, Tokenizer

_CONTEXT = 64
_TRIED = 16
"""About so many borders of words in a stretch of text are tried, of each of two sorts."""

_CHANGING = ("lstrip", "rstrip", "single_word")


def load_json(path: Path, data: bytes, given: Mapping[str, str | None]) -> "JsonTokenizer":
    """The tokenizer of a file with these contents.

    given: tokens for bos, eos and pad.

    Raises ValueError if it is no tokenizer.json or unsuitable.
    """
    name = str(path)
    try:
        text = data.decode()
        contents = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is not a Hugging Face tokenizer.json: {error}") from None
    try:
        scheme = scheme_of(contents, name)
        roles, notes = find_roles(path.parent, contents, given, name)
        return JsonTokenizer(contents, scheme, roles, notes, name)
    except (AttributeError, IndexError, KeyError, TypeError):
        _parsed(text, name)  # what has another structure is refused by the library
        raise


class JsonTokenizer(Tokenizer):
    """Text to token ids and back.

    Where a text may be cut: if the model sees it in words, then at a border of two words, at which
    every beginning within `context` characters before it gives the same tokens whether the text is
    cut there or not. Whatever word a beginning of the text ends in there, they meet again at that
    border. If the model sees whole texts: where no piece can span the cut (data.cutting); of
    unigram models several segmentations can be equally likely, and which one is taken depends on
    rounding.
    """

    kind = "hf_json"

    def __init__(
        self,
        contents: Section,
        scheme: Scheme,
        roles: Mapping[str, str],
        notes: list[str],
        name: str = "this tokenizer",
    ) -> None:
        """contents: of the file.  roles: the tokens of bos, eos and pad.

        Raises ValueError if it changes text.
        """
        contents, switched_off = _usable(contents, roles)
        self.notes = (*notes, *switched_off)
        file, map_file = FILES[self.kind]
        text = json.dumps(contents, ensure_ascii=False, separators=(",", ":"))
        self.files = {file: text.encode(errors="surrogatepass"), map_file: token_map(roles)}
        self._library = _parsed(text, name)
        self._library.encode_special_tokens = True  # as ordinary text
        self._scheme = scheme
        self._pieces, self._added = pieces_of(contents), added_tokens(contents)
        ids = self._pieces | {token["content"]: token["id"] for token in self._added}
        self.size = max(ids.values()) + 1
        self.bos_id, self.eos_id, self.pad_id = (ids[roles[role]] for role in ROLES)
        self._special = {
            *roles.values(),
            *(token["content"] for token in self._added if token["special"]),
            *filter(None, [unknown_piece(contents)]),
        }
        self._literals = self._forbidden(contents, name)
        self._pairs = self._adjacent_pairs(contents)
        self._check(name)

    @cached_property
    def context(self) -> int:
        longest = max((len(token["content"]) for token in self._added), default=0)
        return 1 if self._pairs is not None else max(_CONTEXT, 2 * longest)

    def parts(self, text: str, limit: int = PART_CHARACTERS) -> list[str]:
        """limit: has no effect where the model sees words, which it needs little memory for."""
        text = self._escaped(text)
        pieces = [text] if text else []
        if self._literals is not None and text:
            borders = [match.start() + 1 for match in self._literals.finditer(text)]
            pieces = [text[a:b] for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]
        if self._pairs is None:
            return pieces
        return [part for piece in pieces for part in cut_text(piece, self._pairs, limit)]

    def encode_parts(self, parts: list[str]) -> list[np.ndarray]:
        encoded = self._library.encode_batch_fast(parts, add_special_tokens=False)
        return [np.array(one.ids, dtype=np.int32) for one in encoded]

    def find_cut(self, text: str, begin: int, end: int) -> int | None:
        if self._pairs is not None:
            return first_cut(text, begin, end, self._pairs, self._escaped)
        first, last = max(0, begin - self.context), end + self.context
        _, borders = self._words(text[first:last])
        places = sorted(first + place for place in borders if begin <= first + place < end)
        # Where text has no place, such as in a long number, trying every one would take minutes.
        likely = [place for place in places if _kind(text[place - 1]) != _kind(text[place])]
        others = sorted(set(places) - set(likely))
        tried = (place for some in (likely, others) for place in some[:: len(some) // _TRIED + 1])
        return next((place for place in tried if self._may_cut(text, place)), None)

    def unescape(self, text: str) -> str:
        return unescape(text) if self._scheme.marker else text

    def _escaped(self, text: str) -> str:
        return escape(text) if self._scheme.marker else text

    def _may_cut(self, text: str, place: int) -> bool:
        end = place + self.context
        after, _ = self._words(text[place:end])
        for begin in range(place - 1, max(0, place - self.context) - 1, -1):
            whole, borders = self._words(text[begin:end])
            before, _ = self._words(text[begin:place])
            if place - begin not in borders or whole != before + after:
                return False
        return True

    def _words(self, text: str) -> tuple[list[int], set[int]]:
        """Token ids, and the places in `text` where a word follows another one."""
        ids: list[int] = []
        borders, begin = set(), 0
        for part in self.parts(text):
            encoded = self._library.encode(part, add_special_tokens=False)
            ids += encoded.ids
            words, spans = encoded.word_ids, encoded.offsets
            borders |= {begin} | {
                begin + spans[i][0]
                for i in range(1, len(words))
                if words[i] != words[i - 1] and spans[i][0] == spans[i - 1][1]
            }
            begin += len(part)
        if self._scheme.marker and (ESCAPE in text or MARKER in text):
            sizes = (len(escape(character)) for character in text)
            starts = accumulate(sizes, initial=0)
            borders = {place for place, start in enumerate(starts) if start in borders}
        return ids, borders - {0}

    @cached_property
    def _bytes(self) -> list[bytes]:
        table = [b""] * self.size
        for piece, id in self._pieces.items():
            if piece not in self._special:
                table[id] = self._scheme.bytes_of(piece)
        for token in self._added:
            if token["content"] not in self._special:
                table[token["id"]] = self._scheme.bytes_of_added(token["content"])
            else:
                table[token["id"]] = b""
        return table

    def _forbidden(self, contents: Section, name: str) -> re.Pattern[str] | None:
        """Strings that text may hold and that are not to become the pieces of that name."""
        pieces = self._special | (byte_pieces(contents) if self._scheme.byte_fallback else set())
        pieces = producible(contents, pieces)
        plain = self._scheme._replace(byte_fallback=False)
        texts = [plain.bytes_of(piece).decode(errors="replace") for piece in sorted(pieces)]
        for text in texts:
            if len(text) < 2 or "\ufffd" in text:
                raise ValueError(
                    f"{name}: text can produce its special token {text!r}, a single character. "
                    f"{WAY_OUT}"
                )
        # Occurrences may overlap: each is looked at from its first character alone.
        return re.compile(f"(?={'|'.join(map(re.escape, texts))})") if texts else None

    def _adjacent_pairs(self, contents: Section) -> frozenset[str] | None:
        """None where the text around a place decides on more than pieces: words, byte-level pieces,
        whole texts that are pieces."""
        ignores_merges = contents["model"].get("ignore_merges")
        if self._scheme.byte_level or ignores_merges or has_words(contents):
            return None
        pieces = self._pieces.keys() | {token["content"] for token in self._added}
        return adjacent_pairs(
            piece.replace(MARKER, " ") if self._scheme.marker else piece for piece in pieces
        )

    def _check(self, name: str) -> None:
        for token in self._added:
            self._check_added(token, name)
        literals = "".join(f"a{token['content']} {token['content']}\n" for token in self._added)
        for probe in (*PROBES, literals):
            if (back := self.decode(self.encode(probe))) != probe:
                raise ValueError(
                    f"{name} changes text: {probe!r} comes back as {back!r}. {WAY_OUT}"
                )

    def _check_added(self, token: Section, name: str) -> None:
        content = token["content"]
        if (id := self._library.token_to_id(content)) != token["id"]:
            raise ValueError(
                f"{name}: its added token {content!r} has id {token['id']} in the file, but {id} "
                "in the tokenizers library, which counts on from the model's vocabulary. Number "
                "added tokens without holes"
            )
        if token["special"]:
            return
        if changing := [key for key in _CHANGING if token.get(key)]:
            raise ValueError(
                f"{name}: its added token {content!r} takes in or depends on what stands around it "
                f"({', '.join(changing)}). Set that to false in the file, or train one here: "
                "tokenizer=sentencepiece_32k"
            )
        as_piece, as_text = self._scheme.bytes_of(content), self._scheme.bytes_of_added(content)
        if content in self._pieces and as_piece != as_text:
            raise ValueError(
                f"{name}: its added token {content!r} is a piece of the model, too, which stands "
                f"for {as_piece!r}. {WAY_OUT}"
            )


def _parsed(text: str, name: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower one
        raise ValueError(f"{name} is not a Hugging Face tokenizer.json: {error}") from None


def _kind(character: str) -> str:
    """Letter, number, space and so on, by which words are split."""
    return unicodedata.category(character)[0]


def _usable(contents: Section, roles: Mapping[str, str]) -> tuple[Section, list[str]]:
    """The contents without what adds to text or takes from it, and notes about that."""
    model: dict[str, Any] = contents["model"]
    dropped = bool(model.get("dropout"))
    off = [key for key in ("truncation", "padding") if contents.get(key)]
    off += ["dropout"] if dropped else []
    notes = [f"Switched off in the tokenizer: {', '.join(off)}."] if off else []
    changed = {
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "added_tokens": [
            token | {"special": bool(token.get("special")) or token["content"] in roles.values()}
            for token in added_tokens(contents)
        ],
        "model": model | {"dropout": None} if dropped else model,
    }
    return contents | changed, notes
