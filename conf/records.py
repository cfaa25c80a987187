"""Small JSON files that a command leaves in a run's folder and reads again."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any


def read_record(path: Path, keys: Collection[str], way_out: str) -> dict[str, Any]:
    """The object in `path`, which has at least `keys`.

    Args:
        way_out: what to do about a missing or damaged file; ends the message.

    Raises:
        ValueError: there is no such file or it holds something else, as after half a copy.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: {way_out}") from None
    except ValueError as error:  # no JSON, or no UTF-8
        raise ValueError(f"{path} is damaged ({error}): {way_out}") from None
    missing = [key for key in keys if not isinstance(record, dict) or key not in record]
    if missing:
        raise ValueError(f"{path} is damaged (no {', no '.join(missing)}): {way_out}")
    return record
