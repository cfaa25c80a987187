"""Kernels compiled ahead of time: registers, shared memory, tensor cores, specialisation keys."""

import itertools
from typing import get_args

import pytest
from ahead_of_time import run_compiling

from kernels.compile import main
from kernels.triton.blocks import KernelName, LayerKernelName, most_channels

WIDTHS = {"sm_80": (64, 128), "sm_90": (64, 128), "sm_100": (64,), "gfx942": (64,)}
MUST_NOT_SPILL = ("sm_80", "sm_90")
TARGETS = ["sm_90", *(pytest.param(t, marks=pytest.mark.long) for t in WIDTHS if t != "sm_90")]


@pytest.mark.parametrize("target", TARGETS)
def test_no_kernel_spills_and_every_product_uses_tensor_cores(target: str) -> None:
    cases = list(itertools.product(("token", "channel"), WIDTHS[target]))
    steps = run_compiling(
        f"""
import json, torch
from kernels.compile import Case, compiled
steps = [compiled({target!r}, Case(*case, torch.bfloat16)) for case in {cases}]
print(json.dumps([[[r.kernel, r.resources.spilled_bytes, r.resources.fits,
                    r.resources.tensor_core_instructions] for r in rows] for rows in steps]))
"""
    )
    for case, rows in zip(cases, steps, strict=True):
        # One training step of one kind of mixer: five kernels, two of them in both directions.
        assert len(rows) == 7
        assert len({kernel.split(" ")[0] for kernel, *_ in rows}) == 5
        for kernel, spilled, fits, tensor_core_instructions in rows:
            assert spilled == 0 or target not in MUST_NOT_SPILL, (case, kernel)
            assert fits, (case, kernel)
            assert (tensor_core_instructions > 0) != kernel.startswith("scan_states"), (
                case,
                kernel,
            )


# One family each: a step takes up to half a minute. `python -m kernels.compile --delta` does all.
DELTA_CASES = {
    "sm_80": ("channel", 128),
    "sm_90": ("token", 64),
    "sm_100": ("head", 16),
    "gfx942": ("none", 16),
}
ONE_ADDRESS = 8  # bytes: key_query_gradients keeps an offset of the last stores on the stack


@pytest.mark.long
@pytest.mark.parametrize("target", WIDTHS)
def test_the_kernels_of_the_delta_rule_do_not_spill_either(target: str) -> None:
    rows = run_compiling(
        f"""
import json, torch
from kernels.compile import Case, compiled
rows = compiled({target!r}, Case(*{DELTA_CASES[target]}, torch.bfloat16, delta=True))
print(json.dumps([[r.kernel, r.resources.spilled_bytes, r.resources.fits,
                   r.resources.tensor_core_instructions] for r in rows]))
"""
    )
    # The programs of one training step of one kind of mixer.
    assert [kernel for kernel, *_ in rows] == [
        "corrections", "delta_states", "outputs", "delta_state_gradients", "key_query_gradients",
    ]  # fmt: skip
    for kernel, spilled, fits, tensor_core_instructions in rows:
        most = ONE_ADDRESS if kernel == "key_query_gradients" else 0
        assert spilled <= most or target not in MUST_NOT_SPILL, kernel
        assert fits, kernel
        assert tensor_core_instructions > 0, kernel


@pytest.mark.long
@pytest.mark.parametrize("target", WIDTHS)
def test_no_kernel_of_a_layer_spills(target: str) -> None:
    rows = run_compiling(
        f"""
import json, torch
from kernels.compile import LAYERS, Case, compiled
rows = compiled({target!r}, Case(LAYERS, 96, torch.bfloat16))
print(json.dumps([[r.kernel, r.resources.spilled_bytes, r.resources.fits] for r in rows]))
"""
    )
    assert [kernel for kernel, *_ in rows] == list(get_args(LayerKernelName))
    for kernel, spilled, fits in rows:
        assert spilled == 0, kernel
        assert fits, kernel


@pytest.mark.long
@pytest.mark.parametrize("target", WIDTHS)
def test_the_decoding_kernel_does_not_spill(target: str) -> None:
    rows = run_compiling(
        f"""
import json, torch
from kernels.compile import Case, compiled
cases = [Case("channel", width, torch.bfloat16, normalize, delta=not normalize, decoding=True)
         for width, normalize in ((128, True), (256, False))]
rows = [row for case in cases for row in compiled({target!r}, case, length=1)]
print(json.dumps([[r.kernel, r.resources.spilled_bytes, r.resources.fits] for r in rows]))
"""
    )
    assert rows == [["decode", 0, True]] * 2


def test_nothing_is_compiled_again_for_other_lengths_or_batches() -> None:
    # fla-org/flash-linear-attention#1147, #669, #533: a new length compiled the kernels anew.
    programs = run_compiling(
        """
import json, torch
from kernels.compile import LAYERS, Case, launches
counts = []
for case in (
    Case("token", 16, torch.bfloat16),
    Case("token", 16, torch.bfloat16, delta=True),
    Case(LAYERS, 5, torch.bfloat16),
    Case("token", 16, torch.bfloat16, decoding=True),
):
    seen = {}
    for length in (*range(1, 4), *range(100, 164)):
        for kernel, options, program in launches("sm_90", case, length):
            seen.setdefault(kernel, set()).add(id(program))
    for batch in range(1, 31):
        for kernel, options, program in launches("sm_90", case, 64 * batch + 1, batch):
            seen.setdefault(kernel, set()).add(id(program))
    counts.append({kernel: len(programs) for kernel, programs in seen.items()})
print(json.dumps(counts))
"""
    )
    additive, delta, layers, decoding = programs
    names = ("corrections", "delta_states", "outputs", "delta_state_gradients")
    assert delta == dict.fromkeys((*names, "key_query_gradients"), 1)
    assert additive == {
        "chunk_states": 2,  # forward and backward
        "scan_states": 2,
        "outputs": 1,
        "value_gradients": 1,
        "key_query_gradients": 1,
    }
    assert decoding == {"decode": 1}
    assert layers == dict.fromkeys(get_args(LayerKernelName), 1)


def test_each_kernel_has_at_most_three_block_sizes() -> None:
    for kernel in get_args(KernelName):
        choices = itertools.product((False, True), (False, True))
        assert len({most_channels(kernel, *choice) for choice in choices}) <= 3, kernel


@pytest.mark.parametrize("width", ["x", "0", "-5", "64.5", "1" + "0" * 5000])
def test_a_width_that_no_head_has_is_refused(width, capsys):
    with pytest.raises(SystemExit) as exit:
        main(["--width", width])
    assert exit.value.code == 2
    assert f"{width!r} is not a whole number from 1 to 4096" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "sm_70"], "invalid choice: 'sm_70'"),
        (["--family", "layers", "--delta"], "knows no --normalize and no --delta"),
        (["--delta", "--width", "64", "257"], "--delta has kernels up to --width 256, got 257"),
        ([], "TRITON_INTERPRET is set, and the interpreter compiles nothing: unset it"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
