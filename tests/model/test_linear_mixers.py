"""Decays, writes and what is around the recurrence, against formulas."""

import math

import pytest
import torch
import torch.nn.functional as F

from model.attention_mask import alibi_slope
from model.sequence import SequenceInfo
from model.training.optimizers import build_optimizer
from tests.composing import composed, small_model


def mixer_of(name: str, *overrides: str, blocks: int = 1):
    torch.manual_seed(0)
    return small_model(f"{name}*{blocks}", *overrides).blocks[blocks - 1].mixer


def log_decay_of(name: str, *overrides: str, blocks: int = 1) -> torch.Tensor:
    x = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(0))
    return mixer_of(name, *overrides, blocks=blocks).decay(x)


def test_fixed_decays_have_their_published_spread():
    heads = ["model.mixers.retnet.heads=8"]

    def kept(decay):
        return log_decay_of("retnet", f"model.mixers.retnet.decay={decay}", *heads).double().exp()

    h = torch.arange(8, dtype=torch.float64)
    assert torch.allclose(kept("retnet"), 1 - 2.0 ** (-5 - h), atol=1e-7)
    spread = torch.linspace(math.log(1 / 32), math.log(1 / 512), 8, dtype=torch.float64)
    assert torch.allclose(kept("retnet_lm"), 1 - spread.exp(), atol=1e-7)
    assert torch.allclose(kept("alibi"), (-(2.0 ** (-1 - h))).exp(), atol=1e-7)


@pytest.mark.parametrize("decay", ["learned", "gla", "simple_gla", "mamba2", "kda", "kda_bounded"])
def test_learned_decays_start_at_memory_lengths_spread_evenly_in_the_logarithm(decay):
    model = small_model(
        "gla",
        f"model.mixers.gla.decay={decay}",
        "model.mixers.gla.memory_length=[8,1000]",
        "model.mixers.gla.heads=4",
    )
    log_decay = model.blocks[0].mixer.decay(torch.zeros(1, 1, 32))
    memory = (-1 / log_decay.double()).view(1 if log_decay.dim() < 4 else 4, 4)
    expected = torch.logspace(math.log10(8), 3, 4, dtype=torch.float64)
    assert torch.allclose(memory, expected.expand_as(memory), rtol=1e-3)


def test_bounded_decays_stay_above_their_bound():
    torch.manual_seed(0)
    net = small_model("kda", "model.mixers.kda.decay=kda_bounded")
    decay = net.blocks[0].mixer.decay
    log_decay = decay(1000 * torch.randn(1, 50, 32))
    assert log_decay.shape == (1, 50, 2, 16)
    assert log_decay.min() == -5
    assert log_decay.max() <= 0


def test_lightning_forgets_less_in_later_blocks():
    slopes = alibi_slope(torch.arange(2), 2)
    for blocks, share in ((1, 1), (2, 0), (5, 0)):
        log_decay = log_decay_of("lightning", blocks=blocks)
        assert torch.allclose(log_decay, -slopes * (share + 1e-5), rtol=1e-5)
    torch.manual_seed(0)
    middle = small_model("lightning*5").blocks[1].mixer.decay(torch.zeros(1, 1, 32))
    assert torch.allclose(middle, -slopes * (0.75 + 1e-5))


def test_alibi_multiplies_weights_by_an_exponential_of_the_distance():
    mixer = mixer_of("linear", "model.mixers.linear.decay=alibi")
    x = torch.randn(1, 40, 32)
    q, k = (
        mixer.feature_map.function(part(x).unflatten(-1, (2, -1))) for part in (mixer.q, mixer.k)
    )
    v = mixer.v(x).unflatten(-1, (2, -1))
    distance = (torch.arange(40)[:, None] - torch.arange(40)).double()
    bias = -alibi_slope(torch.arange(2), 2, torch.float64)[:, None, None] * distance
    weights = torch.einsum("bihd,bjhd->bhij", q, k).double() * bias.tril().exp()
    weights = weights.tril() / weights.tril().sum(-1, keepdim=True)
    wanted = torch.einsum("bhij,bjhv->bihv", weights, v.double()).flatten(-2)
    got = mixer(x, SequenceInfo.of(torch.zeros(1, 40)))[0]
    assert torch.allclose(got.double(), wanted @ mixer.out.weight.double().T, atol=1e-5)


def test_mamba2_starts_and_is_regularised_as_published():
    torch.manual_seed(0)
    model = small_model("mamba2", "model.mixers.mamba2.heads=32")
    mixer = model.blocks[0].mixer
    rate, dt = mixer.decay.log_rate.exp(), F.softplus(mixer.decay.bias)
    assert 1 <= rate.min() < 3 < 14 < rate.max() <= 16
    assert 1e-3 * 0.999 <= dt.min() < 2e-3 < 0.05 < dt.max() <= 0.1 * 1.001
    assert dt.log().std() > 1  # uniform in the logarithm
    assert torch.equal(mixer.skip, torch.ones(32))
    groups = build_optimizer(composed().optimizer, model, "32-true").param_groups
    free = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    assert {id(p) for p in (mixer.decay.log_rate, mixer.decay.bias, mixer.skip)} <= free
    assert id(mixer.decay.gate.weight) not in free


def test_hgrn2s_lower_bound_rises_from_block_to_block():
    torch.manual_seed(0)
    model = small_model("hgrn2*4")
    x = torch.full((1, 1, 32), 1e4)
    for index, block in enumerate(model.blocks):
        block.mixer.decay.gate.weight.data.fill_(-1)  # gates so low that only the bound is left
        kept = block.mixer.decay(x).double().exp()
        assert torch.allclose(kept, torch.tensor(index / 4, dtype=torch.float64), atol=1e-6)


def test_bounded_decays_are_exact_for_any_gate():
    decay = mixer_of("hgrn2", blocks=3).decay
    decay.bound_logit.data.copy_(torch.linspace(-30, 30, 32))
    decay.gate.weight.data.copy_(torch.eye(32))
    x = torch.linspace(-60, 60, 241)[None, :, None].expand(1, -1, 32).contiguous().requires_grad_()
    log_decay = decay(x).flatten(-2)
    bound = torch.sigmoid(decay.bound_logit.double())
    rest = torch.sigmoid(-decay.bound_logit.double())
    wanted = torch.logaddexp(bound.log(), rest.log() + F.logsigmoid(x.double()))
    forgotten = rest * torch.sigmoid(-x.double())
    wanted = torch.where(forgotten < 0.5, torch.log1p(-forgotten), wanted)
    assert log_decay.max() <= 0
    assert torch.allclose(log_decay.double(), wanted, rtol=3e-5, atol=1e-30)
    assert bool(torch.isfinite(torch.autograd.grad(log_decay.sum(), x)[0]).all())


def test_rotary_positions_before_a_dot_product_map_see_distances_only():
    mixer = mixer_of("taylor", "model.mixers.taylor.rope_base=100.0")
    q, k = torch.randn(2, 1, 1, 16)
    info = SequenceInfo.of(torch.zeros(1, 60))

    def weight(at, before):
        x = torch.zeros(1, 60, 16)
        x[:, at], x[:, before] = q, k
        mapped = mixer._map(x, x, None, info, None)
        return (mapped.q[0, at] * mapped.k[0, before]).sum(-1)

    assert torch.allclose(weight(9, 4), weight(55, 50), rtol=1e-4)
    assert not torch.allclose(weight(9, 4), weight(9, 7), rtol=1e-2)


def test_texts_longer_than_cosformers_maximum_are_refused():
    model = small_model("cosformer", "model.mixers.cosformer.max_length=20").eval()
    model(torch.zeros(1, 20, dtype=torch.long))
    with pytest.raises(ValueError, match=r"row \(21 tokens\) is more than max_length=20"):
        model(torch.zeros(1, 21, dtype=torch.long))
    _, cache = model.decode(torch.zeros(1, 20, dtype=torch.long))
    with pytest.raises(ValueError, match=r"document \(21 tokens\) is more than max_length=20"):
        model.decode(torch.zeros(1, 1, dtype=torch.long), cache)
    model.decode(torch.zeros(1, 1, dtype=torch.long), cache, cache.segment[:, None] + 1)
