"""Which documents are validation documents.

Documents come in families that stay on one side: those a source declares, and documents with equal
text. Families are ordered by a hash keyed with the seed, so that the choice does not depend on file
names, on the order of the documents or on what else is in the corpus.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

SMALL_SHARE = 10


@dataclass(frozen=True)
class Assignment:
    """validation: bool [documents].  cut: (document, byte) from which on a training document's
    text is a validation document of its own, or None.  notes: what is worth telling."""

    validation: np.ndarray
    cut: tuple[int, int] | None
    notes: list[str]


def family_key(seed: int, family: str) -> int:
    """Place of a family in the order, uint64."""
    digest = hashlib.blake2b(family.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little")


def assign(keys: np.ndarray, sizes: np.ndarray, validation_bytes: int) -> Assignment:
    """Chooses whole families until they hold `validation_bytes`.

    keys: uint64 [documents], `family_key`s.  sizes: int64 [documents], bytes.
    A corpus of less than 4 `validation_bytes` gives a tenth of its bytes instead. A family of more
    than twice what is wanted is never chosen. If the others hold less than half of it (a corpus of
    one or two documents), the last part of the longest document becomes the validation document.
    """
    notes = []
    total = int(sizes.sum())
    wanted = validation_bytes
    if total < 4 * validation_bytes:
        wanted = max(1, total // SMALL_SHARE)
        notes.append(
            f"The corpus has {total} bytes, less than 4 x data.validation_bytes={validation_bytes}"
            f": about a tenth, {wanted} bytes, is held out for validation."
        )
    families, members = np.unique(keys, return_inverse=True)
    family_sizes = np.zeros(len(families), dtype=np.int64)
    np.add.at(family_sizes, members, sizes)
    fits = family_sizes <= 2 * wanted
    before = np.cumsum(np.where(fits, family_sizes, 0)) - np.where(fits, family_sizes, 0)
    chosen = fits & (before < wanted)
    if not chosen.all() and 2 * int(family_sizes[chosen].sum()) >= wanted:
        return Assignment(chosen[members], None, notes)
    longest = int(sizes.argmax())
    cut = int(sizes[longest]) - min(wanted, int(sizes[longest]) // 2)
    notes.append(
        "The documents that are small enough to be held out whole have too little text: the end of "
        "the longest one is the validation document."
    )
    if (others := int((members == members[longest]).sum()) - 1) > 0:
        notes.append(
            f"The longest document has {others} others with the same text or of its family, which "
            "are trained on: validation says nothing about new text. data.drop_duplicates=true "
            "leaves out what is equal."
        )
    return Assignment(np.zeros(len(sizes), dtype=bool), (longest, cut), notes)
