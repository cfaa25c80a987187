"""metrics.jsonl, the truth about a run: one JSON object per line, for train steps and validations.

Every row has `step` (optimizer steps done) and `tokens` (consumed so far). Train rows add what the
module measured and `train_seconds`, validation rows the keys that start with `val_`. Numbers that
JSON cannot express are the strings "nan", "inf" and "-inf" in the file.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

from model.training.files import write_atomic

Row = dict[str, Any]

_NOT_IN_JSON = ("nan", "inf", "-inf")


def append(path: Path, row: Row) -> None:
    """Appends one row; it is with the operating system when this returns."""
    text = json.dumps({key: _to_json(value) for key, value in row.items()}, allow_nan=False)
    with open(path, "a", encoding="utf-8") as file:
        file.write(text + "\n")


def read(path: Path) -> list[Row]:
    """All rows, in the order of the file; none when the file is missing.

    A last line that a killed process left half-written is passed over and named on standard error.

    Raises:
        ValueError: another line is no row of metrics.
    """
    path = Path(path)
    if not path.is_file():
        return []
    rows = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or "step" not in row:
                raise ValueError("no row with a step")
            if not line.endswith("\n"):
                raise ValueError("no line end")
        except ValueError as error:
            if number == len(lines):
                print(f"warning: {path}: passed over the half-written last line", file=sys.stderr)
                break
            raise ValueError(
                f"{path}, line {number} is no row of metrics ({error}): remove that line"
            ) from error
        rows.append({key: _from_json(value) for key, value in row.items()})
    return rows


def cut(path: Path, step: int) -> list[Row]:
    """Removes the rows after optimizer step `step`, and a half-written last line.

    Returns:
        the rows that are kept.
    """
    rows = [row for row in read(path) if row["step"] <= step]
    lines = [
        json.dumps({key: _to_json(value) for key, value in row.items()}, allow_nan=False) + "\n"
        for row in rows
    ]
    write_atomic(path, "".join(lines))
    return rows


def is_validation(row: Row) -> bool:
    """Whether a row is of a validation (else it is of a train step)."""
    return any(key.startswith("val_") for key in row)


def _to_json(value: int | float) -> int | float | str:
    return value if math.isfinite(value) else str(value)


def _from_json(value: Any) -> Any:
    return float(value) if value in _NOT_IN_JSON else value
