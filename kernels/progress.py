"""How far a command is: a bar on a terminal, a line now and then in a log."""

import sys
from collections.abc import Iterable
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
_LINE = "{desc}: {n_fmt} of {total_fmt} after {elapsed}, {remaining} left\n"


def progress(items: Iterable[Item], text: str) -> Iterable[Item]:
    """The items, with `text` before how many of them are done on standard error."""
    if sys.stderr.isatty():
        return tqdm(items, text)
    return tqdm(items, text, mininterval=30, bar_format=_LINE)
