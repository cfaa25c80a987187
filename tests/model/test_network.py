"""The network over every preset: causality, documents, decoding in pieces, 16-bit, tying."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from kernels import linear_attention as run
from model.mixers import linear as linear_mixer
from model.network import LanguageModel
from tests.composing import PRESETS, composed, small_model

EVERY_PRESET = pytest.mark.parametrize("layers", [*PRESETS, "gla+window softmax retnet"])
WITH_CONV = tuple(
    f"model.mixers.{name}.conv_width=4" for name in PRESETS if name not in ("softmax", "window")
)


def tokens_of(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(64, (rows, length), generator=torch.Generator().manual_seed(seed))


@EVERY_PRESET
def test_later_tokens_change_nothing_before_them(layers):
    torch.manual_seed(0)
    model = small_model(layers, *WITH_CONV)
    tokens = tokens_of(2, 129)
    changed = tokens.clone()
    changed[:, 80:] = tokens_of(2, 49, seed=1)
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :80], after[:, :80], atol=1e-6, rtol=0)
    assert not torch.allclose(before[:, 80:], after[:, 80:], atol=1e-3)


@EVERY_PRESET
def test_document_b_is_unchanged_when_document_a_changes(layers):
    torch.manual_seed(0)
    model = small_model(layers, *WITH_CONV)
    tokens = tokens_of(1, 129)
    segments = (torch.arange(129) >= 50).long()[None]
    changed = tokens.clone()
    changed[:, :50] = tokens_of(1, 50, seed=1)

    def output_and_gradients(tokens):
        embedded = []
        model.zero_grad()
        hook = model.embedding.register_forward_hook(
            lambda module, args, out: embedded.append(out) or out.retain_grad()
        )
        out = model(tokens, segments)[:, 50:]
        hook.remove()
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        return out, embedded[0].grad[:, 50:], embedded[0].grad[:, :50]

    out, inside, leaked = output_and_gradients(tokens)
    out_changed, inside_changed, _ = output_and_gradients(changed)
    assert torch.equal(out, out_changed)
    assert torch.equal(inside, inside_changed)
    assert not leaked.any()


@EVERY_PRESET
def test_a_document_is_the_same_alone_and_packed(layers):
    torch.manual_seed(0)
    model = small_model(layers, *WITH_CONV)
    tokens = tokens_of(1, 129)
    segments = (torch.arange(129) >= 50).long()[None]
    packed = model(tokens, segments)
    assert torch.allclose(packed[:, :50], model(tokens[:, :50]), atol=2e-5)
    assert torch.allclose(packed[:, 50:], model(tokens[:, 50:]), atol=2e-5)


@EVERY_PRESET
@pytest.mark.parametrize("pieces", [(1,) * 12, (37, 1, 29, 1, 1, 70), (138, 1), (2, 137)])
def test_decoding_in_pieces_equals_the_full_forward(layers, pieces):
    torch.manual_seed(0)
    model = small_model(layers, *WITH_CONV).eval()
    tokens = tokens_of(2, sum(pieces))
    full = model(tokens)
    cache, end = None, 0
    for piece in pieces:
        logits, cache = model.decode(tokens[:, end : end + piece], cache)
        end += piece
        assert torch.allclose(logits, full[:, end - 1], atol=3e-5)
    assert cache.next_position.tolist() == [sum(pieces)] * 2


@EVERY_PRESET
def test_padding_on_the_left_changes_nothing(layers):
    torch.manual_seed(0)
    model = small_model(layers, *WITH_CONV).eval()
    long, short = tokens_of(1, 30), tokens_of(1, 21, seed=1)
    rows = torch.cat((long, torch.cat((tokens_of(1, 9, seed=2), short), dim=1)))
    segments = torch.ones(2, 30, dtype=torch.int64)
    segments[1, :9] = 0
    logits, cache = model.decode(rows, segments=segments)
    alone, cache_alone = model.decode(short)
    assert torch.allclose(logits[1], alone[0], atol=3e-5)
    for step in range(20):
        token = tokens_of(1, 1, seed=10 + step)
        logits, cache = model.decode(token.expand(2, 1), cache)
        alone, cache_alone = model.decode(token, cache_alone)
        assert torch.allclose(logits[1], alone[0], atol=3e-5)


@EVERY_PRESET
def test_a_reordered_cache_continues_the_reordered_prompts(layers):
    torch.manual_seed(0)
    model = small_model(layers, *WITH_CONV).eval()
    prompts, order = tokens_of(3, 40), torch.tensor([2, 0, 0])
    _, cache = model.decode(prompts)
    _, wanted = model.decode(prompts[order])
    moved = cache.reorder(order)
    for step in range(5):
        token = tokens_of(3, 1, seed=step + 1)
        left, moved = model.decode(token, moved)
        right, wanted = model.decode(token, wanted)
        assert torch.allclose(left, right, atol=1e-5)


@EVERY_PRESET
def test_two_continuations_of_one_cache_do_not_meet(layers):
    torch.manual_seed(0)
    model = small_model(layers, *WITH_CONV).eval()
    _, cache = model.decode(tokens_of(1, 40))
    first, second = tokens_of(1, 20, seed=1), tokens_of(1, 20, seed=2)
    expected, _ = model.decode(first, cache)
    model.decode(second, cache)
    again, _ = model.decode(first, cache)
    assert torch.equal(expected, again)
    with pytest.raises(ValueError, match="cannot be rolled back by 2 tokens"):
        cache.truncate(2)


@EVERY_PRESET
def test_the_cache_holds_the_bytes_that_the_layer_table_states(layers):
    model = small_model(layers, *WITH_CONV).eval()
    for length in (9, 40):
        _, cache = model.decode(tokens_of(1, length))
        stated = sum(block.mixer.state_bytes(length) for block in model.blocks)
        assert cache.nbytes() == stated + 16  # 16: the model's own two counters


def test_linear_states_do_not_grow():
    model = small_model("gla retnet linear window").eval()
    sizes = {model.decode(tokens_of(1, length))[1].nbytes() for length in (16, 64, 200)}
    assert len(sizes) == 1


def test_a_16_bit_retnet_keeps_its_decays():
    model = small_model("retnet", "model.mixers.retnet.heads=8").to(torch.bfloat16)
    log_decay = model.blocks[0].mixer.decay(torch.zeros(1, 1, 32, dtype=torch.bfloat16))
    assert log_decay.dtype == torch.float32
    kept = (log_decay.double() * 4096).exp()
    expected = torch.tensor([3.33e-4, 1.83e-2, 0.1353, 0.3678], dtype=torch.float64)
    assert torch.allclose(kept[4:], expected, rtol=0.02)


def test_every_preset_runs_in_bfloat16():
    model = small_model(" ".join(PRESETS), *WITH_CONV).to(torch.bfloat16)
    out = model(tokens_of(1, 20))
    assert out.dtype == torch.bfloat16
    assert torch.isfinite(out).all()


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


def test_bounded_decays_stay_above_their_bound():
    torch.manual_seed(0)
    net = small_model("kda", "model.mixers.kda.decay=kda_bounded")
    decay = net.blocks[0].mixer.decay
    log_decay = decay(1000 * torch.randn(1, 50, 32))
    assert log_decay.shape == (1, 50, 2, 16)
    assert log_decay.min() == -5
    assert log_decay.max() <= 0


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


@pytest.mark.parametrize("decay", ["learned", "gla", "mamba2", "kda", "kda_bounded"])
def test_decays_start_at_the_memory_lengths_asked_for(decay):
    model = small_model(
        "gla", f"model.mixers.gla.decay={decay}", "model.mixers.gla.memory_length=[8,1000]"
    )
    log_decay = model.blocks[0].mixer.decay(torch.zeros(1, 1, 32))
    memory = (-1 / log_decay).flatten()
    assert memory.min().item() == pytest.approx(8, rel=1e-3)
    assert memory.max().item() == pytest.approx(1000, rel=1e-3)


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


def test_rotary_angles_are_exact_far_into_a_document():
    from model.sequence import SequenceInfo

    info = SequenceInfo.of(torch.zeros(1, 32_768, dtype=torch.int64))
    cos, sin = info.rotation(64, 10_000.0)
    angle = torch.arange(32_768, dtype=torch.float64)[:, None] * 10_000.0 ** (
        -torch.arange(0, 64, 2, dtype=torch.float64) / 64
    )
    assert (cos[0, :, 0].double() - angle.cos()).abs().max() < 1e-6
    assert (sin[0, :, 0].double() - angle.sin()).abs().max() < 1e-6
    assert (cos[0, 1000] - cos[0, 1001]).abs().max() > 0.1


def test_positions_restart_at_every_document():
    from model.sequence import SequenceInfo

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
    torch.manual_seed(0)
    model = small_model("gla retnet softmax window", *WITH_CONV)
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
    model = small_model("softmax gla", *WITH_CONV, "model.mixers.softmax.recall_init=true")
    model.to(torch.bfloat16).init_weights()
    turned = model.blocks[0].mixer.v.weight.float()
    assert torch.allclose(turned @ turned.T, torch.eye(len(turned)), atol=0.05)
