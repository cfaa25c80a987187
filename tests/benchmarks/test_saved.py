"""Files that commands leave: nothing but what the schema describes is read or added to."""

import json

import pytest
from pydantic import BaseModel

from benchmarks.saved import Count, Refused, read_results, start_or_continue

HERE = {
    "cpu": "Some CPU", "cores": 2, "threads": 1, "torch": "2.13", "python": "3.11",
    "revision": "abc",
}  # fmt: skip
NOTHING = {"machine": HERE, "settings": {"width": 4}, "points": []}


class Results(BaseModel):
    machine: dict
    settings: dict
    points: list[Count]


def saved(folder, text: str):
    path = folder / "results.json"
    path.write_text(text)
    return path


def test_what_was_written_is_read_with_keys_of_later_versions(tmp_path):
    results = NOTHING | {"points": [3], "later": "x"}
    assert read_results(saved(tmp_path, json.dumps(results)), Results) == results


WRONG = {
    "no_json": ("{", "no JSON (Expecting property name"),
    "no_text": ("\ud800", "no JSON ('utf-8' codec"),
    "nested": ("[" * 100_000, "no JSON ("),
    "no_object": ("[]", "Input should be a valid dictionary"),
    "nothing": ("{}", "machine: Field required"),
    "a_number": (json.dumps(NOTHING | {"points": 4}), "points: Input should be a valid list"),
    "text": (
        json.dumps(NOTHING | {"points": [1, "2"]}),
        "points.1: Input should be a valid integer",
    ),
    "zero": (json.dumps(NOTHING | {"points": [0]}), "points.0: Input should be greater than 0"),
    "huge": (json.dumps(NOTHING | {"points": [10**400]}), "points.0: Input should be "),
}


@pytest.mark.parametrize(("text", "reason"), WRONG.values(), ids=WRONG)
def test_anything_else_is_refused_with_its_place(text, reason, tmp_path):
    path = tmp_path / "results.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    message = f"{path}: not written by this command: {reason}"
    with pytest.raises(Refused) as refused:
        read_results(path, Results)
    assert str(refused.value).startswith(f"--read {message}")
    with pytest.raises(Refused) as refused:
        start_or_continue(path, Results, NOTHING, fresh=False)
    assert str(refused.value).startswith(message)
    assert str(refused.value).endswith("; --fresh replaces it")
    assert start_or_continue(path, Results, NOTHING, fresh=True) == NOTHING


def test_no_file_and_a_folder_are_refused(tmp_path):
    for path, reason in ((tmp_path / "x", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(Refused, match=f"^--read {path}: {reason}.*; give a file that"):
            read_results(path, Results)


def test_a_file_is_added_to_on_the_same_machine_with_the_same_settings(tmp_path):
    assert start_or_continue(tmp_path / "new.json", Results, NOTHING, fresh=False) == NOTHING
    known = NOTHING | {"points": [1, 2]}
    path = saved(tmp_path, json.dumps(known))
    assert start_or_continue(path, Results, NOTHING, fresh=False) == known
    with pytest.raises(Refused) as refused:
        start_or_continue(path, Results, NOTHING | {"settings": {"width": 8}}, fresh=False)
    assert str(refused.value) == (
        f"{path} holds measurements of other settings; --fresh forgets them, --output FOLDER keeps "
        "both:\n  width: saved 4, now 8"
    )
    other = NOTHING | {"machine": HERE | {"cpu": "Other CPU"}}
    with pytest.raises(Refused, match=r"holds measurements of Some CPU.*, and this is Other CPU"):
        start_or_continue(path, Results, other, fresh=False)
