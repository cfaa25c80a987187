"""A sentencepiece tokenizer that loses nothing.

sentencepiece's defaults rewrite text (google/sentencepiece#520, #101, #863); `data.vocabulary`
trains models without any normalisation and with byte fallback, and loaded models that change text
are refused. One character is left that sentencepiece cannot tell from a space, its own marker
U+2581; it is escaped (data.marker). Models that `data.vocabulary` trained on text with tabs see
U+E001 for a tab, and the reverse.
"""

from functools import cached_property

import numpy as np
import sentencepiece

from data.cutting import PART_CHARACTERS, adjacent_pairs, cut_text, first_cut
from data.marker import MARKER, escape, unescape
from data.tokenizer import FILES, PROBES, Tokenizer
from data.vocabulary import SWAP_TABS, TAB


class SentencepieceTokenizer(Tokenizer):
    """Text to token ids and back; `model` is the bytes of the sentencepiece model.

    A text of more than `limit` characters is encoded in parts. It is cut between two characters
    a, b only if no piece of the vocabulary contains "ab" (data.cutting), so the tokens are those of
    the whole text. For unigram models this holds for exact scores; sentencepiece adds them up in
    float32 from the start of its input, and over long inputs the rounding decides between
    segmentations that are nearly as good (seen in a text of 20 kB). Parts keep the sums short.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes, name: str = "this tokenizer") -> None:
        """Takes the bytes of a sentencepiece model; `name` is what error messages call it.

        Raises ValueError if the model is damaged, has no bos, eos or pad id, or changes text.
        """
        self.model = model
        self.files = {FILES[self.kind][0]: model}
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ValueError(f"{name} is not a sentencepiece model.") from error
        self.size = self._processor.get_piece_size()
        self.bos_id = self._processor.bos_id()
        self.eos_id = self._processor.eos_id()
        self.pad_id = self._processor.pad_id()
        self._pairs = self._adjacent_pairs()
        self._swaps_tabs = any(TAB in self._processor.id_to_piece(id) for id in range(self.size))
        self._check(name)

    def parts(self, text: str, limit: int = PART_CHARACTERS) -> list[str]:
        return cut_text(self._escaped(text), self._pairs, limit)

    def encode_parts(self, parts: list[str]) -> list[np.ndarray]:
        return self._processor.encode(parts, return_type="numpy", num_threads=1)

    def find_cut(self, text: str, begin: int, end: int) -> int | None:
        return first_cut(text, begin, end, self._pairs, self._escaped)

    def unescape(self, text: str) -> str:
        # A model without a piece for a space writes the bytes of the marker that stands for it.
        return self._swapped(unescape(text.replace(MARKER, " ")))

    def _escaped(self, text: str) -> str:
        return self._swapped(escape(text))

    def _swapped(self, text: str) -> str:
        if self._swaps_tabs and TAB not in text:
            return text.replace("\t", TAB)  # ten times as fast as translate
        if self._swaps_tabs and ("\t" in text or TAB in text):
            return text.translate(SWAP_TABS)
        return text

    @cached_property
    def _bytes(self) -> list[bytes]:
        return [self._bytes_of(id) for id in range(self.size)]

    def _bytes_of(self, id: int) -> bytes:
        piece = self._processor.id_to_piece(id)
        if self._processor.is_byte(id):
            return bytes([int(piece[3:5], 16)])
        if self._processor.is_control(id) or self._processor.is_unknown(id):
            return b""
        return piece.replace(MARKER, " ").encode()

    def _adjacent_pairs(self) -> frozenset[str]:
        special = (
            self._processor.is_byte,
            self._processor.is_control,
            self._processor.is_unknown,
        )
        return adjacent_pairs(
            self._processor.id_to_piece(id).replace(MARKER, " ")
            for id in range(self.size)
            if not any(is_special(id) for is_special in special)
        )

    def _check(self, name: str) -> None:
        for role in ("bos", "eos", "pad"):
            id = getattr(self, f"{role}_id")
            if id < 0 or not self._processor.is_control(id):
                raise ValueError(
                    f"{name} has no {role} id, or one that text can produce. Train it with "
                    "bos_id, eos_id and pad_id >= 0, or type tokenizer.path=null to train one here."
                )
        for probe in PROBES:
            if self.decode(self.encode(probe)) != probe:
                raise ValueError(
                    f"{name} changes text: {probe!r} comes back as "
                    f"{self.decode(self.encode(probe))!r}. Train it with byte_fallback=true, "
                    "normalization_rule_name=identity, remove_extra_whitespaces=false and "
                    "add_dummy_prefix=false, or type tokenizer.path=null to train one here."
                )
