"""Kernels compiled ahead of time: registers, shared memory, tensor cores, specialisation keys."""

import itertools
import subprocess
import sys
from typing import get_args

import pytest
from ahead_of_time import run_compiling

from kernels.compile import main
from kernels.triton.blocks import KernelName, LayerKernelName, most_channels

WIDTHS = {"sm_80": (64, 128), "sm_90": (64, 128), "sm_100": (64,), "gfx942": (64,)}
MUST_NOT_SPILL = ("sm_80", "sm_90")


@pytest.mark.parametrize("target", WIDTHS)
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


def test_no_kernel_of_a_layer_spills() -> None:
    rows = run_compiling(
        f"""
import json, torch
from kernels.compile import LAYERS, Case, compiled
case = Case(LAYERS, 96, torch.bfloat16)
rows = [row for target in {MUST_NOT_SPILL} for row in compiled(target, case)]
print(json.dumps([[r.kernel, r.resources.spilled_bytes, r.resources.fits] for r in rows]))
"""
    )
    assert [kernel for kernel, *_ in rows] == 2 * list(get_args(LayerKernelName))
    for kernel, spilled, fits in rows:
        assert spilled == 0, kernel
        assert fits, kernel


def test_nothing_is_compiled_again_for_other_lengths_or_batches() -> None:
    # fla-org/flash-linear-attention#1147, #669, #533: a new length compiled the kernels anew.
    programs = run_compiling(
        """
import json, torch
from kernels.compile import LAYERS, Case, launches
seen = {}
for case in (Case("token", 16, torch.bfloat16), Case(LAYERS, 5, torch.bfloat16)):
    for length in (*range(1, 4), *range(100, 164)):
        for kernel, options, program in launches("sm_90", case, length):
            seen.setdefault(kernel, set()).add(id(program))
    for batch in range(1, 31):
        for kernel, options, program in launches("sm_90", case, 64 * batch + 1, batch):
            seen.setdefault(kernel, set()).add(id(program))
print(json.dumps({kernel: len(programs) for kernel, programs in seen.items()}))
"""
    )
    assert programs == {
        "chunk_states": 2,  # forward and backward
        "scan_states": 2,
        "outputs": 1,
        "value_gradients": 1,
        "key_query_gradients": 1,
        **dict.fromkeys(get_args(LayerKernelName), 1),
    }


def test_each_kernel_has_at_most_three_block_sizes() -> None:
    for kernel in get_args(KernelName):
        choices = itertools.product((False, True), (False, True))
        assert len({most_channels(kernel, *choice) for choice in choices}) <= 3, kernel


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "sm_70"], "invalid choice: 'sm_70'"),
        (["--width", "x"], "'x' is no width of a head"),
    ],
)
def test_the_command_names_what_it_knows(arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "kernels.compile", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize("width", ["0", "-5", "64.5", "1" + "0" * 5000])
def test_a_width_that_no_head_has_is_refused(width, capsys):
    with pytest.raises(SystemExit) as exit:
        main(["--width", width])
    assert exit.value.code == 2
    assert "give a whole number from 1 to 4096" in capsys.readouterr().err
