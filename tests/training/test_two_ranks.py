"""Two processes that train together: they stop, fail, continue and draw random features alike."""

import json
import signal
from pathlib import Path

import pytest

from model.training.checkpoints import latest
from model.training.metrics_file import is_validation, read
from tests.ranks import run_two_ranks

HERE = Path(__file__).parent


@pytest.mark.long
def test_two_ranks_stop_fail_and_continue_alike(tmp_path):
    """A signal at rank 1 only, a full disk at rank 0 only, an older start of rank 1, to the end."""
    ranks = run_two_ranks(HERE / "two_ranks.py", str(tmp_path))
    differ = (
        "rank 0 continues from step 7, others from step 5",
        "rank 1 continues from step 5, others from step 7",
    )
    for lines, refused in zip(ranks, differ, strict=True):
        assert lines == [
            f"stopped after 7 by {int(signal.SIGUSR1)}",
            "could not write FOLDER/checkpoints/step-00000010.ckpt",
            refused,
            "finished, trained from 7",
        ]
    assert latest(tmp_path / "checkpoints").name == "step-00000012.ckpt"
    rows = read(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if not is_validation(row)] == [4, 7, 8, 12]
    assert [row["step"] for row in rows if is_validation(row)] == [7]


@pytest.mark.long
def test_two_ranks_with_different_seeds_draw_the_same_random_features(tmp_path):
    """26 steps at once, and 13 that new processes continue."""

    def trained(part: str) -> list[dict]:
        first, second = run_two_ranks(HERE / "two_ranks_redraw.py", str(tmp_path), part)
        assert first == second
        return [json.loads(line) for line in first]

    whole, begun = trained("begin")
    drawn = whole["drawn"]
    assert list(drawn) == [str(step) for step in range(26)]
    of_step = {step: drawn[str(step)] for step in (0, 9, 10, 19, 20, 25)}
    assert of_step[0] == of_step[9] == whole["at_start"]
    assert of_step[10] == of_step[19]
    assert of_step[20] == of_step[25]
    assert len(set(drawn.values())) == 3

    (continued,) = trained("continue")
    assert begun["logits"] == continued["logits_at_start"]
    assert begun["drawn"] | continued["drawn"] == drawn
    assert begun["losses"] + continued["losses"] == whole["losses"]
    # A validation after 20 steps still has the features of the 20th.
    assert whole["validated_with"] == continued["validated_with"] == {"20": drawn["19"]}
    assert whole["logits"] == continued["logits"]
