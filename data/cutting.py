"""Where a text may be cut if its vocabulary is all that decides: between two characters that stand
side by side in no piece.

No merge (BPE) and no piece of any segmentation (unigram) can span such a cut, so that the tokens of
both sides are those of the whole text.
"""

from collections.abc import Callable, Iterable

PART_CHARACTERS = 1024
"""Characters that are encoded at once. sentencepiece needs about 45 bytes of memory for each."""


def adjacent_pairs(pieces: Iterable[str]) -> frozenset[str]:
    """All two characters that stand side by side in a piece."""
    return frozenset(piece[i : i + 2] for piece in pieces for i in range(len(piece) - 1))


def cut_text(text: str, pairs: frozenset[str], limit: int) -> list[str]:
    """Parts of `text`, each up to the first place after `limit` characters that no pair spans, or
    to the end of the text if there is none."""
    assert limit >= 1, limit
    parts = []
    begin = 0
    while len(text) - begin > limit:
        end = begin + limit
        while end < len(text) and text[end - 1 : end + 1] in pairs:
            end += 1
        parts.append(text[begin:end])
        begin = end
    if begin < len(text):
        parts.append(text[begin:])
    return parts


def first_cut(
    text: str, begin: int, end: int, pairs: frozenset[str], escaped: Callable[[str], str]
) -> int | None:
    """The first place in [begin, end) of an unescaped text that no pair spans."""
    for place in range(max(begin, 1), end):
        if escaped(text[place - 1])[-1] + escaped(text[place])[0] not in pairs:
            return place
    return None
