"""Two processes on text that they cannot share evenly: as many steps each, nothing twice."""

import json
from pathlib import Path

import pytest

from tests.ranks import run_two_ranks


@pytest.mark.long
@pytest.mark.parametrize("batch_rows", [2, 4])
def test_two_ranks_take_equally_many_steps_and_share_an_odd_number_of_rows(stream, batch_rows):
    """11 rows; the last step of the epoch begins the next one instead of leaving a rank without."""
    folder = stream([[5] * 4] * 11)
    steps = -(-11 // batch_rows)
    script = Path(__file__).parent / "two_ranks_rows.py"
    lines = run_two_ranks(script, str(folder), str(steps), str(batch_rows))
    ranks = [json.loads(printed[-1]) for printed in lines]
    assert [rank["steps"] for rank in ranks] == [steps, steps]
    trained = sorted(ranks[0]["trained"] + ranks[1]["trained"])
    assert trained == list(range(steps * batch_rows))
    assert len(ranks[0]["validated"]) == len(ranks[1]["validated"])
    once = sorted(n for rank in ranks for n in rank["validated"] if n >= 0)
    assert once == sorted(list(range(11)) * (steps // 2))
