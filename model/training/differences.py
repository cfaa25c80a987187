"""The differences of two configurations, and what to type to undo them."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

from conf.cli import override


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT: Final = _Absent()
"""Stands for the value of a key that one side lacks."""

Difference = tuple[str, Any, Any]
"""(dotted key, saved value, given value)"""


def changed(
    saved: Mapping[str, Any], given: Mapping[str, Any], prefix: str = ""
) -> list[Difference]:
    """The differences of two nested configurations as (dotted key, saved value, given value).

    Lists are compared whole; `ABSENT` stands for a missing key. In the order of `saved`, keys that
    only `given` has last.
    """
    differences: list[Difference] = []
    for key in [*saved, *(key for key in given if key not in saved)]:
        old, new = saved.get(key, ABSENT), given.get(key, ABSENT)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            differences += changed(old, new, f"{prefix}{key}.")
        # 1 == True in Python, but not in a configuration.
        elif old != new or isinstance(old, bool) != isinstance(new, bool):
            differences.append((f"{prefix}{key}", old, new))
    return differences


def saved_values(differences: Iterable[Difference]) -> str:
    """The overrides that give every key its saved value; `~key` removes one."""
    return " ".join(
        shlex.quote(f"~{key}") if saved is ABSENT else override(key, saved)
        for key, saved, _ in differences
    )
