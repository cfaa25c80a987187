"""A whole training step with either form of the kernels, as it is and compiled block by block."""

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from triton.runtime.interpreter import InterpretedFunction

from model.network import LanguageModel
from model.training.loss import chunked_cross_entropy
from tests.composing import small_model

KINDS = ["gla", "retnet", "linear", "deltanet", "gated_deltanet", "kda", "softmax", "gla+window",
         "sparse", "sparse_linear"]  # fmt: skip
# Running maxima of exponential maps take a program per doubling of the length.
ELU1 = tuple(
    f"model.mixers.sparse_linear.{option}" for option in ("feature_map=elu1", "redraw_every=null")
)
LENGTHS = (5, 17, 33, 64, 100, 127, 128, 129, 200, 255, 256, 300, 400, 511, 512, 700, 1000, 1024,
           1500, 2048)  # fmt: skip


def gradients(model: LanguageModel, length: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients of packed rows with two documents each."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(64, (2, length), generator=generator)
    segments = (torch.arange(length) >= torch.tensor([[length // 3], [length // 2]])).long()
    model.zero_grad()
    hidden = model.hidden(tokens, segments).flatten(0, 1)
    labels = tokens.roll(-1, 1).flatten()
    loss, _ = chunked_cross_entropy(hidden, model.head.weight, labels, chunk=64)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def assert_equal_steps(model: LanguageModel, other: LanguageModel, length: int) -> None:
    loss, grads = gradients(model, length)
    other_loss, other_grads = gradients(other, length)
    torch.testing.assert_close(other_loss, loss, rtol=1e-5, atol=0)
    for name, grad in grads.items():
        scale = grad.norm()
        assert (other_grads[name] - grad).norm() <= 1e-4 * scale, name


@pytest.mark.parametrize(
    ("layers", "length"),
    [
        ("gla gated_deltanet", 66),
        pytest.param("gla softmax kda retnet linear", 130, marks=pytest.mark.long),
        pytest.param("sparse_linear", 66, marks=pytest.mark.long),
    ],
)
def test_a_training_step_on_triton_kernels_equals_one_in_plain_pytorch(
    layers: str, length: int
) -> None:
    torch.manual_seed(0)
    model, on_triton = (small_model(layers, "model.mixers.gla.conv_width=4") for _ in range(2))
    on_triton.load_state_dict(model.state_dict())
    on_triton.kernels, model.kernels = "triton", "torch"
    assert_equal_steps(model, on_triton, length)


@pytest.mark.parametrize(
    ("layers", "kernels"),
    [
        ("gla", "torch"),
        pytest.param("gated_deltanet retnet", "torch", marks=pytest.mark.long),
        pytest.param("sparse sparse_linear", "torch", marks=pytest.mark.long),
        pytest.param("gla gated_deltanet", "triton", marks=pytest.mark.long),
    ],
)
def test_a_compiled_training_step_equals_the_eager_one(layers: str, kernels: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, compiled = (small_model(layers) for _ in range(2))
    compiled.load_state_dict(model.state_dict())
    model.kernels = compiled.kernels = kernels
    compiled.compile_blocks()
    for block in compiled.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    for length in (17, 40, 300):  # from the second one on with the length left open
        assert_equal_steps(model, compiled, length)


@pytest.fixture
def no_launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Operators are traced and called, and their kernels do nothing: values do not matter."""
    monkeypatch.setattr(InterpretedFunction, "__getitem__", lambda *_: lambda *_, **__: None)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize(
    ("layers", "lengths"),
    [
        ("gated_deltanet", LENGTHS[:3]),
        *(pytest.param(k, LENGTHS, marks=pytest.mark.long) for k in KINDS),
    ],
)
def test_20_lengths_take_two_programs(
    layers: str, lengths: tuple[int, ...], kernels: str, no_launches: None
) -> None:
    """One for the first length, one for all others; no graph breaks in either direction."""
    model = small_model(layers, *ELU1)
    model.kernels = kernels
    model.compile_blocks()
    programs = CompileCounterWithBackend("aot_eager")
    for block in model.blocks:
        block.compile(backend=programs, fullgraph=True)
    for length in lengths:
        with torch.autocast("cpu", torch.bfloat16):
            gradients(model, length)
    assert programs.frame_count == 2
