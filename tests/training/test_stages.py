"""Stages as functions of the step; what cannot be a list of stages."""

import pytest

from model.training.stages import stage_at, stages_of, tokens_after, total_steps
from tests.composing import composed, small_model

RUN = ("trainer.batch_tokens=128", "trainer.tokens=3000", "trainer.minutes=null")


def staged(stages: str, *more: str):
    settings = composed(*RUN, "data.seq_len=32", f"trainer.stages={stages}", *more)
    return stages_of(settings.trainer, settings.data.seq_len)


def test_stages_follow_one_another_and_the_last_lasts_to_the_end():
    stages = staged(
        "[{until_tokens:1280},{until_tokens:1792,seq_len:64,batch_tokens:256},{batch_tokens:512}]"
    )
    assert [(s.first_step, s.steps, s.first_tokens) for s in stages] == [
        (0, 10, 0),
        (10, 2, 1280),
        (12, 3, 1792),
    ]
    assert [(s.seq_len, s.rows) for s in stages] == [(32, 4), (64, 4), (32, 16)]
    assert [stage_at(stages, step) for step in (0, 9, 10, 11, 12, 99)] == [0, 0, 1, 1, 2, 2]
    tokens = [tokens_after(stages, step) for step in range(total_steps(stages) + 1)]
    assert tokens[:2] == [0, 128]
    assert tokens[10:] == [1280, 1536, 1792, 2304, 2816, 3328]


def test_a_run_without_stages_is_one():
    (stage,) = stages_of(composed(*RUN).trainer, 32)
    assert (stage.steps, stage.rows, stage.micro_batch_rows) == (24, 4, None)
    assert tokens_after([stage], 24) == 3072


def test_longer_rows_are_trained_fewer_at_a_time():
    stages = staged(
        "[{until_tokens:1280},{until_tokens:2560,seq_len:128},{seq_len:64,micro_batch_rows:1}]",
        "trainer.micro_batch_rows=3",
    )
    assert [stage.micro_batch_rows for stage in stages] == [3, 1, 1]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("[]", "trainer.stages is empty; type trainer.stages=null"),
        ("[{until_tokens:1000},{}]", r"no whole number of steps of batch_tokens=128; use 896 or 1"),
        ("[{until_tokens:100},{}]", r"use 128$"),
        ("[{until_tokens:1280},{until_tokens:1280},{}]", "from 1,280 to 1,280 tokens; until_tok"),
        ("[{until_tokens:5120},{}]", r"up to trainer\.tokens=3,000"),
        ("[{},{}]", "trainer.stages.0 has no until_tokens; only the last stage may leave it out"),
        ("[{until_tokens:1280},{until_tokens:2560}]", "type trainer.tokens=2560"),
        ("[{until_tokens:1280},{seq_len:48}]", "is not a whole number of rows of its seq_len=48"),
        (
            "[{until_tokens:1280},{seq_len:48,batch_tokens:96}]",
            "stages.0: rows of 32 tokens do not divide the longest rows of the run, 48 tokens; "
            "use a divisor, such as 24",
        ),
    ],
)
def test_what_cannot_be_a_list_of_stages_is_refused(stages, message):
    with pytest.raises(ValueError, match=message):
        staged(stages)


def test_a_limit_in_minutes_is_refused_with_stages():
    with pytest.raises(ValueError, match=r"minutes=3 with trainer\.stages.*trainer\.minutes=null"):
        staged("[{}]", "trainer.minutes=3")


def test_a_stage_knows_its_keys():
    with pytest.raises(ValueError, match=r"trainer\.stages\.0\.seqlen=64: there is no key"):
        composed("trainer.stages=[{seqlen:64}]")


def test_a_rotary_base_is_set_where_softmax_attention_sees_the_whole_document():
    model = small_model("gla softmax window softmax+retnet")
    before = [model.settings.mixers[name].rope_base for name in ("softmax", "window")]

    def bases():
        mixers = [m for m in model.blocks.modules() if type(m).__name__ == "SoftmaxMixer"]
        return [mixer.rope_base for mixer in mixers]

    model.set_rope_base(5e5)
    assert bases() == [5e5, before[1], 5e5]
    assert model.settings.mixers["softmax"].rope_base == 5e5
    assert model.settings.mixers["window"].rope_base == before[1]
    model.set_rope_base(None)
    assert bases() == [before[0], before[1], before[0]]
    assert model.settings.mixers["softmax"].rope_base == before[0]


def test_a_rotary_base_without_such_attention_is_refused():
    with pytest.raises(ValueError, match=r"rope_base=500000 has no mixer to be of"):
        small_model("gla window").set_rope_base(5e5)
