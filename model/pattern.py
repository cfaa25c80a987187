"""The layer pattern: one string that lists the mixer of every block.

pattern := item item ...            blocks, first to last
item    := block | block * COUNT    repeated
block   := branch | branch + branch ...   parallel branches of one block
         | ( pattern )              a group

>>> expand("(gla gla softmax)*2 gla+window")
[('gla',), ('gla',), ('softmax',), ('gla',), ('gla',), ('softmax',), ('gla', 'window')]
"""

import difflib
import re
from collections.abc import Collection
from typing import NamedTuple

MAX_LAYERS = 4096
_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<count>\d+)|(?P<sign>[()*+]))")


class Depth(NamedTuple):
    """Where a block stands: its number, from 0, among the `count` blocks of the model."""

    index: int
    count: int


def expand(pattern: str, names: Collection[str] | None = None) -> list[tuple[str, ...]]:
    """Expands a layer pattern into one tuple of branch names per block.

    Args:
        pattern: for example `(gla gla retnet softmax)*3` or `gla*3 window+gla softmax`.
        names: the allowed mixer names; None allows any.

    Raises:
        ValueError: pointing at the first bad token, and saying what is allowed there.
    """
    parser = _Parser(pattern, names)
    layers = parser.pattern(inside_group=False)
    if not layers:
        known = f"; mixers: {', '.join(sorted(names))}" if names else ""
        raise ValueError(
            f"model.layers={pattern!r} names no layer: write for example "
            f"'model.layers=(gla gla softmax)*2'{known}"
        )
    return layers


def used_names(*patterns: str) -> set[str]:
    """The mixers that at least one of these patterns names."""
    return {name for pattern in patterns for block in expand(pattern) for name in block}


class _Parser:
    def __init__(self, text: str, names: Collection[str] | None) -> None:
        self.text = text
        self.names = names
        self.tokens: list[tuple[str, str, int]] = []  # (kind, text, position)
        position = 0
        while text[position:].strip():
            found = _TOKEN.match(text, position)
            if found is None:
                start = position + len(text[position:]) - len(text[position:].lstrip())
                self._fail(start, f"unexpected {text[start]!r}; allowed: mixer names ( ) * +")
            kind = found.lastgroup
            self.tokens.append((kind, found[kind], found.start(kind)))
            position = found.end()
        self.next = 0

    def pattern(self, inside_group: bool) -> list[tuple[str, ...]]:
        layers: list[tuple[str, ...]] = []
        while True:
            kind, token, position = self._peek()
            if kind == "end" or (token == ")" and inside_group):
                return layers
            item = self._item()
            layers += item
            if len(layers) > MAX_LAYERS:
                self._fail(position, f"more than {MAX_LAYERS} layers")

    def _item(self) -> list[tuple[str, ...]]:
        kind, token, position = self._take()
        if token == "(":
            block = self.pattern(inside_group=True)
            if self._peek()[1] != ")":
                self._fail(position, "this '(' is never closed: add ')'")
            self._take()
            if not block:
                self._fail(position, "this group is empty: name a mixer in it")
        elif kind == "name":
            block = [self._branches(token, position)]
        else:
            self._fail(position, f"unexpected {token!r}; expected a mixer name or '('")
        if self._peek()[1] == "*":
            self._take()
            kind, token, position = self._take()
            if kind != "count" or int(token) == 0:
                what = repr(token) if token else "the end"
                self._fail(position, f"expected a count of at least 1 after '*', found {what}")
            if len(block) * int(token) > MAX_LAYERS:
                self._fail(position, f"more than {MAX_LAYERS} layers")
            block = block * int(token)
            if self._peek()[1] == "*":
                self._fail(self._peek()[2], "a count cannot be repeated: multiply the two")
        if self._peek()[1] == "+":
            self._fail(self._peek()[2], "'+' joins mixer names, not groups or counts")
        return block

    def _branches(self, first: str, position: int) -> tuple[str, ...]:
        branches = [self._known(first, position)]
        while self._peek()[1] == "+":
            self._take()
            kind, token, position = self._take()
            if kind != "name":
                what = repr(token) if token else "the end"
                self._fail(position, f"expected a mixer name after '+', found {what}")
            branches.append(self._known(token, position))
        return tuple(branches)

    def _known(self, name: str, position: int) -> str:
        if self.names is not None and name not in self.names:
            close = difflib.get_close_matches(name, self.names, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            known = ", ".join(sorted(self.names))
            self._fail(position, f"there is no mixer {name!r}{hint}; mixers: {known}")
        return name

    def _peek(self) -> tuple[str, str, int]:
        if self.next < len(self.tokens):
            return self.tokens[self.next]
        return ("end", "", len(self.text))

    def _take(self) -> tuple[str, str, int]:
        token = self._peek()
        self.next += 1
        return token

    def _fail(self, position: int, reason: str) -> None:
        raise ValueError(f"model.layers: {reason}\n    {self.text}\n    {' ' * position}^")
