"""Spaces as U+2581, and what that takes: no text may hold a real one.

Vocabularies of the sentencepiece family write spaces as U+2581, so a real U+2581 would come back as
a space. It is escaped: with E = U+E000 (private use), U+2581 becomes "Ea" and E itself "Eb".
"""

import re

MARKER = "\u2581"
ESCAPE = "\ue000"

_ESCAPED = re.compile(f"{ESCAPE}([ab])")


def escape(text: str) -> str:
    """`text` without U+2581."""
    return text.replace(ESCAPE, ESCAPE + "b").replace(MARKER, ESCAPE + "a")


def unescape(text: str) -> str:
    """Undoes `escape`; `text` must not end between an escape character and what follows."""
    return _ESCAPED.sub(lambda match: MARKER if match[1] == "a" else ESCAPE, text)
