"""The network around its mixers: widths, weights, cost, positions, compiled blocks."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from kernels import linear_attention as run
from model.mixers import linear as linear_mixer
from model.network import LanguageModel
from model.sequence import SequenceInfo
from tests.composing import composed, small_model
from tests.model.family import family_model, tokens_of


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_stays_one_tensor(tied):
    model = small_model("gla", f"model.tie_embeddings={str(tied).lower()}")
    own = 64 * 32
    blocks = sum(p.numel() for p in model.blocks.parameters()) + 32
    assert model.num_parameters() == blocks + own * (1 if tied else 2)
    with torch.device("meta"):
        empty = LanguageModel(model.settings, 64)
    empty.to_empty(device="cpu").init_weights()
    for moved in (model, model.to(torch.bfloat16), empty):
        same = moved.head.weight.data_ptr() == moved.embedding.weight.data_ptr()
        assert same is tied
    loaded = LanguageModel(model.settings, 64)
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(loaded.head.weight.bfloat16(), model.head.weight)
    assert (loaded.head.weight is loaded.embedding.weight) is tied


def test_flops_are_flat_for_linear_mixers_and_grow_for_softmax():
    linear, softmax = small_model("gla*2"), small_model("softmax*2")
    mixed = small_model("gla softmax")
    assert linear.flops_per_token(1024) == linear.flops_per_token(16384)
    growth = [softmax.flops_per_token(n) for n in (1000, 2000, 3000)]
    assert growth[2] - growth[1] == pytest.approx(growth[1] - growth[0])
    assert growth[1] > growth[0]
    both = linear.flops_per_token(4096) + softmax.flops_per_token(4096)
    assert 2 * mixed.flops_per_token(4096) == pytest.approx(both)


def test_flops_count_every_matrix_product():
    model = small_model("softmax", "model.tie_embeddings=true")
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    attention = 4 * (100 + 1) / 2 * 32
    assert model.flops_per_token(100) == 2 * matrices + attention


def test_the_delta_rule_counts_its_read_before_the_write():
    models = [
        small_model("deltanet", "model.mixers.deltanet.qk_norm=true", *more)
        for more in (
            (),
            ("model.mixers.deltanet.write=additive", "model.mixers.deltanet.beta_max=null"),
        )
    ]
    delta, additive = (model.flops_per_token(100) for model in models)
    beta, state = 2 * 32 * 2, 2 * 16 * 16  # a projection to 2 heads; one multiply-add per entry
    assert delta - additive == beta + 2 * state
    tables = [model.blocks[0].mixer.state_bytes(100) for model in models]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("beta_max", [1, 2])
def test_strengths_of_writes_lie_between_0_and_their_maximum(beta_max, monkeypatch):
    seen = {}

    def recorded(*arguments, **options):
        seen["arguments"] = arguments
        return run(*arguments, **options)

    monkeypatch.setattr(linear_mixer, "linear_attention", recorded)
    torch.manual_seed(0)
    net = small_model("kda", f"model.mixers.kda.beta_max={beta_max}")
    net.blocks[0].mixer.beta.weight.data.mul_(50)
    net(tokens_of(2, 40))
    _, k, _, _, beta = seen["arguments"]
    assert beta.dtype == torch.float32
    assert 0 <= beta.min() < 0.1 * beta_max
    assert 0.9 * beta_max < beta.max() <= beta_max
    assert torch.allclose(k.norm(dim=-1), torch.ones(()), atol=1e-2)
    assert k.norm(dim=-1).max() <= 1 + 1e-6


@pytest.mark.parametrize("init", ["depth_scaled", "zero_residual"])
def test_residual_projections_start_small(init):
    torch.manual_seed(0)
    model = small_model(
        "gla softmax gla+window", f"model.init={init}", "model.mixers.softmax.recall_init=false"
    )
    expected = 0 if init == "zero_residual" else 0.2 / 6**0.5
    for block in model.blocks:
        for output in (*block.mixer.residual_outputs(), block.ffn.down):
            assert output.weight.std().item() == pytest.approx(expected, rel=0.1)
    assert model.blocks[0].mixer.q.weight.std().item() == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["model.mixers.gla.heads=5"], "model.mixers.gla: expand_k=0.5"),
        (["model.mixers.gla.expand_k=0.51"], "expand_k=0.51"),
        (["model.d_model=255"], "heads=2 does not divide d_model=255"),
        (
            [
                "model.d_model=256",
                "model.mixers.softmax.heads=256",
                "model.mixers.softmax.kv_heads=256",
            ],
            "odd head",
        ),
        (["model.d_model=256", "model.mixers.retnet.heads=256"], "odd key width"),
    ],
)
def test_widths_that_do_not_fit_are_named(overrides, reason):
    settings = composed("model.layers=softmax retnet gla", *overrides).model
    with pytest.raises(ValueError, match=reason):
        LanguageModel(settings, 64)


def test_a_window_sees_exactly_its_width():
    torch.manual_seed(0)
    model = small_model("window")
    tokens = tokens_of(1, 60)
    changed = tokens.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 64
    difference = (model(tokens) - model(changed)).abs().amax(dim=-1)[0]
    assert difference.nonzero().flatten().tolist() == list(range(20, 36))


def test_positions_restart_at_every_document():
    segments = torch.tensor([[0, 0, 0, 1, 1, 4], [2, 2, 2, 2, 2, 2]])
    assert SequenceInfo.of(segments, segments).positions.tolist() == [
        [0, 1, 2, 0, 1, 0],
        [0, 1, 2, 3, 4, 5],
    ]
    continued = SequenceInfo.of(segments, segments, torch.tensor([0, 1]), torch.tensor([7, 9]))
    assert continued.positions.tolist() == [[7, 8, 9, 0, 1, 0], [0, 1, 2, 3, 4, 5]]


@torch.no_grad()
@pytest.mark.parametrize("layers", ["gla retnet softmax", "(gla softmax)*2", "softmax*3"])
@pytest.mark.parametrize(("rope_base", "period"), [("null", 200), ("1e6", 50)])
def test_with_recall_init_a_new_model_continues_what_repeats(layers, rope_base, period):
    torch.manual_seed(0)
    settings = composed(
        f"model.layers={layers}", f"model.mixers.softmax.rope_base={rope_base}"
    ).model
    model = LanguageModel(settings, vocab_size=512)
    half = torch.randperm(512)[:period]
    tokens = torch.cat((half, half))[None]
    guesses = model(tokens[:, :-1])[0].argmax(-1)
    right = (guesses == tokens[0, 1:]).float()
    assert right[period:].mean() > 0.9
    assert right[: period - 1].mean() < 0.1


@torch.no_grad()
@pytest.mark.parametrize("d_model", [64, 128, 512])
def test_with_recall_init_a_new_model_is_as_sure_at_any_width(d_model):
    torch.manual_seed(0)
    settings = composed(f"model.d_model={d_model}", "model.mixers.softmax.rope_base=null").model
    model = LanguageModel(settings, vocab_size=512)
    half = torch.randperm(512)[:200]
    logits = model(torch.cat((half, half))[None, :-1])[0]
    assert 10 < logits[200:].amax(-1).mean() < 22


def test_a_row_has_the_same_bits_whether_or_not_masks_are_needed_for_others():
    model = family_model("gla retnet softmax window")
    tokens = tokens_of(2, 129)
    segments = torch.zeros_like(tokens)
    alone = model(tokens, segments)
    segments[1, 100:] = 1  # now masks are at work in both rows
    packed = model(tokens, segments)
    assert torch.equal(alone[0], packed[0])
    assert torch.allclose(alone[1, :100], packed[1, :100], atol=1e-5)


@torch.no_grad()
@torch._dynamo.config.patch(recompile_limit=1)
def test_any_number_of_kinds_of_blocks_is_compiled_each_kind_once():
    model = small_model("softmax linear softmax")
    model.compile_blocks()
    programs = CompileCounterWithBackend("eager")
    for block in model.blocks:
        block.compile(backend=programs, fullgraph=True)  # raises where the limit is reached
    for _ in range(2):
        model(tokens_of(2, 40), torch.zeros(2, 40, dtype=torch.long))
    assert programs.frame_count == 2


@torch.no_grad()
@torch._dynamo.config.patch(recompile_limit=5)
def test_blocks_that_differ_in_their_depth_share_a_program():
    torch._dynamo.reset()  # programs that other tests compiled count against the limit
    model = small_model("hgrn2*3 lightning*3 performer*3")
    programs = CompileCounterWithBackend("eager")
    for block in model.blocks:
        block.compile(backend=programs, fullgraph=True)
    tokens, segments = tokens_of(2, 40), (torch.arange(40) > 9).long().expand(2, -1)
    compiled = model(tokens, segments)
    assert programs.frame_count == 4  # the first block has no lower bound
    model.redraw(1000)
    model(tokens, segments)
    assert programs.frame_count == 4
    plain = small_model("hgrn2*3 lightning*3 performer*3")
    plain.load_state_dict(model.state_dict())
    model.redraw(0)
    plain.redraw(0)
    assert torch.allclose(compiled, plain(tokens, segments), atol=1e-5)


def test_16_bit_weights_can_be_initialised_again():
    model = family_model("softmax gla")
    assert model.blocks[0].mixer.recall_init
    model.to(torch.bfloat16).init_weights()
    turned = model.blocks[0].mixer.v.weight.float()
    assert torch.allclose(turned @ turned.T, torch.eye(len(turned)), atol=0.05)
