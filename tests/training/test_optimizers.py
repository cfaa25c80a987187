"""Muon against torch's, who trains which parameter, and the state that is saved."""

import pytest
import torch

from model.training.muon import Muon, orthogonalize
from model.training.optimizers import build_optimizer, split_parameters
from tests.composing import composed, small_model


def test_muon_equals_torchs(monkeypatch):
    # torch iterates in bfloat16 whatever the device: without its rounding the two are the same.
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)
    torch.manual_seed(0)
    shapes = [(8, 8), (24, 8), (8, 24), (8, 8)]
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    options = {"lr": 0.02, "momentum": 0.9, "ns_steps": 5, "weight_decay": 0.1}
    optimizer = Muon(ours, **options)
    reference = torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **options)
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape)
            b.grad = a.grad.clone()
        before = [p.detach().clone() for p in ours]
        optimizer.step()
        reference.step()
        for a, b, old in zip(ours, theirs, before, strict=True):
            assert (a - b).norm() / (b - old).norm() < 1e-4
            b.data.copy_(a.data)


def test_singular_values_move_close_to_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(3, 24, 16), 5))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_muon_refuses_what_is_no_matrix():
    with pytest.raises(ValueError, match=r"matrices, not shape \(3,\)"):
        Muon([torch.nn.Parameter(torch.ones(3))], 0.1, 0.9, 5, 0.0)


@pytest.mark.parametrize("tied", ["true", "false"])
def test_every_parameter_is_trained_once_and_by_its_role(tied):
    model = small_model(
        "gla retnet+window softmax",
        f"model.tie_embeddings={tied}",
        "model.mixers.gla.conv_width=4",
    )
    hidden, tables, others = split_parameters(model)
    everything = [id(p) for group in (hidden, tables, others) for p in group]
    assert sorted(everything) == sorted(id(p) for p in model.parameters())
    assert len(tables) == (1 if tied == "true" else 2)
    assert all(p.ndim == 2 for p in hidden)
    names = {id(p): name for name, p in model.named_parameters()}
    free = [names[id(p)] for p in others]
    assert all(any(part in name for part in ("norm", "bias", "scale", "conv_")) for name in free), (
        free
    )
    optimizer = build_optimizer(composed().optimizer, model, "32-true")
    undecayed = [p for g in optimizer.param_groups if g["weight_decay"] == 0 for p in g["params"]]
    assert {id(p) for p in undecayed} == {id(p) for p in others}


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_a_loaded_optimizer_continues_bit_for_bit(kind):
    def step(model, optimizer, seed):
        torch.manual_seed(seed)
        optimizer.zero_grad()
        model(torch.randint(64, (2, 8))).square().mean().backward()
        optimizer.scale_lr(1 / (1 + seed))
        optimizer.step()

    settings = composed(f"optimizer={kind}").optimizer
    torch.manual_seed(0)
    model = small_model("gla softmax")
    optimizer = build_optimizer(settings, model, "32-true")
    step(model, optimizer, 1)
    saved = {k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict()
    saved = torch.load(_stored(saved), weights_only=True)
    other = small_model("gla softmax")
    other.load_state_dict(saved[0])
    continued = build_optimizer(settings, other, "32-true")
    continued.load_state_dict(saved[1])
    step(model, optimizer, 2)
    step(other, continued, 2)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def _stored(value):
    import io

    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_a_skipped_step_changes_nothing():
    torch.manual_seed(0)
    model = small_model("gla")
    optimizer = build_optimizer(composed().optimizer, model, "32-true")
    model(torch.randint(64, (1, 8))).sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.skip_next = True
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert not optimizer.state
    optimizer.step()
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
