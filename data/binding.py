"""Which data set a run was trained on: recorded in the run's folder, refused when it changes.

The record is `data.json` beside a copy of the tokenizer, so that a run generates text without the
data set, and never continues on other data under the same name.
"""

import json
import os
import shutil
from pathlib import Path

from data.index import TOKENIZER_FILE, Index, read_index

RECORD = "data.json"


def bind(run: Path, folder: Path, index: Index) -> None:
    """Records that `run` uses the prepared data set `folder`, or checks that it still does.

    Raises:
        ValueError: the run was started on other data; both fingerprints are named.
    """
    path = run / RECORD
    given = {
        "folder": str(folder),
        "fingerprint": index.fingerprint,
        "tokenizer_fingerprint": index.tokenizer_fingerprint,
    }
    if path.is_file():
        saved = json.loads(path.read_text())
        if saved["fingerprint"] != given["fingerprint"]:
            raise ValueError(
                f"run {run.name!r} was started on the data set {saved['folder']} (contents "
                f"{saved['fingerprint']}, tokenizer {saved['tokenizer_fingerprint']}), but "
                f"{folder} has contents {given['fingerprint']}, tokenizer "
                f"{given['tokenizer_fingerprint']}: the text or the tokenizer changed. Restore it, "
                "or start a new run: run.name=NAME"
            )
        if saved == given:
            return
    shutil.copyfile(folder / TOKENIZER_FILE, run / TOKENIZER_FILE)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(given, indent=2) + "\n")
    os.replace(partial, path)


def bound(run: Path) -> tuple[Path, Index]:
    """The prepared data set of a run.

    Raises:
        ValueError: the run has no record, or its data set is gone or has changed.
    """
    path = run / RECORD
    if not path.is_file():
        raise ValueError(f"{run} has no {RECORD}: the run never started training")
    saved = json.loads(path.read_text())
    index = read_index(saved["folder"])
    if index.fingerprint != saved["fingerprint"]:
        raise ValueError(
            f"{saved['folder']} has contents {index.fingerprint}, but run {run.name!r} was trained "
            f"on {saved['fingerprint']}: prepare the original text again"
        )
    return Path(saved["folder"]), index
