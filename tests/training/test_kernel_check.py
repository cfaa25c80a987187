"""The kernels of a model are checked before it trains on a GPU, and only there."""

import pytest
import torch

import model.training.kernel_check
from kernels.check import KernelError
from model.training.kernel_check import check_kernels
from tests.composing import small_model

GPU = torch.device("cuda")


def test_every_kind_of_mixer_is_checked_once_in_the_type_of_training(monkeypatch):
    calls = []
    monkeypatch.setattr(
        model.training.kernel_check, "check_model_kernels", lambda *given: calls.append(given)
    )
    no_kernels = "model.mixers.linear.conv_width=9"
    network = small_model("(gla retnet)*2 linear+gla softmax", no_kernels)
    check_kernels(network, "bf16-mixed", torch.device("cpu"))
    assert not calls
    check_kernels(network, "bf16-mixed", GPU)
    shapes = {("channel", 8, 16, False), ("head", 16, 16, False), ("none", 16, 16, True)}
    convolutions = {(16, 4, True), (32, 4, True), (32, 4, False)}  # without a silu: softmax's
    layers = {("gated_norm", 16, 2, True), *(("short_conv", *shape) for shape in convolutions)}
    assert calls == [(shapes, torch.bfloat16, "cuda", layers)]
    check_kernels(network, "32-true", GPU)
    assert calls[1][1] == torch.float32


def test_what_runs_in_float32_is_checked_in_float32(monkeypatch):
    calls = []
    monkeypatch.setattr(
        model.training.kernel_check, "check_model_kernels", lambda *given: calls.append(given[:2])
    )
    elu1 = [f"model.mixers.sparse_linear.{o}" for o in ("feature_map=elu1", "redraw_every=null")]
    check_kernels(small_model("sparse_linear gla", *elu1), "bf16-mixed", GPU)
    check_kernels(small_model("sparse_linear"), "bf16-mixed", GPU)
    assert calls == [
        ({("channel", 8, 16, False)}, torch.bfloat16),
        ({("none", 16, 17, False)}, torch.float32),
        (set(), torch.bfloat16),
        ({("scalar", 64, 17, False)}, torch.float32),
    ]


def test_wrong_kernels_end_the_command_with_the_reason(monkeypatch):
    def wrong(*given):
        raise KernelError("the Triton kernels compute wrong values on this machine")

    monkeypatch.setattr(model.training.kernel_check, "check_model_kernels", wrong)
    with pytest.raises(SystemExit, match="Error: the Triton kernels compute wrong values"):
        check_kernels(small_model("gla"), "bf16-mixed", GPU)
