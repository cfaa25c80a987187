"""FAVOR+: unbiased, less noisy than independent rows, and drawn anew on schedule only."""

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from model.feature_maps.favor import Favor, orthogonal_rows
from model.network import LanguageModel
from model.training.checkpoint_io import load
from model.training.checkpoints import Checkpoints, latest
from model.training.load import load_weights
from model.training.module import TrainingModule, ValidationSet
from model.training.stages import stages_of
from tests.composing import composed, small_model
from tests.training.test_module import LENGTH, OVERRIDES, Batches

DIM = 16
EVERY_10 = "model.mixers.performer.redraw_every=10"


@pytest.fixture(scope="module")
def pairs():
    generator = torch.Generator().manual_seed(0)
    return 0.5 * torch.randn(2, 8, DIM, generator=generator)


def test_the_mean_over_projections_is_the_softmax_kernel(pairs):
    q, k = pairs
    rows = 2**17
    exact = ((q * k).sum(-1).double() / DIM**0.5).exp()
    total = (q + k).double().square().sum(-1) / DIM**0.5
    relative_std = ((total.exp() - 1) / rows).sqrt()  # of independent rows; orthogonal have less
    projection = orthogonal_rows(rows, DIM, (0,))
    mean = _kernel(projection, q, k)
    assert ((mean / exact - 1).abs() < 4 * relative_std).all()
    assert relative_std.max() < 0.02


def test_so_is_the_mean_over_redraws(pairs):
    q, k = pairs
    redraws, features = 1000, 32
    phi = small_model(
        "performer", "model.mixers.performer.redraw_every=1",
        f"model.mixers.performer.random_features={features}",
    ).blocks[0].mixer.feature_map  # fmt: skip
    total = 0
    for step in range(redraws):
        phi.redraw(step)
        total += _kernel(phi.projection, q, k)
    exact = ((q * k).sum(-1).double() / DIM**0.5).exp()
    relative_variance = ((q + k).double().square().sum(-1) / DIM**0.5).exp() - 1
    bound = 4 * (relative_variance / (redraws * features)).sqrt()
    assert ((total / redraws / exact - 1).abs() < bound).all()


def _kernel(projection, q, k):
    q, k = (x.double() * DIM**-0.25 for x in (q, k))
    half_squares = (q.square() + k.square()).sum(-1) / 2
    return ((projection.double() @ (q + k).T) - half_squares).exp().mean(0)


def test_orthogonal_rows_err_less_than_independent_ones(pairs):
    q, k = pairs
    exact = ((q * k).sum(-1).double() / DIM**0.5).exp()
    blocks = 2000
    orthogonal = orthogonal_rows(blocks * DIM, DIM, (1,)).unflatten(0, (blocks, DIM))
    independent = torch.randn(blocks, DIM, DIM, generator=torch.Generator().manual_seed(1))
    errors = [
        torch.stack([(_kernel(block, q, k) / exact - 1).square() for block in rows]).mean()
        for rows in (orthogonal, independent)
    ]
    assert errors[0] < 0.9 * errors[1]


def test_rows_are_orthogonal_in_blocks_with_normal_lengths():
    rows = orthogonal_rows(40, DIM, (2,))
    gram = (rows[16:32] @ rows[16:32].T).double()
    assert (gram - gram.diagonal().diag()).abs().max() < 1e-5
    many = orthogonal_rows(2**14, DIM, (3,))
    assert many.square().mean().item() == pytest.approx(1, abs=0.02)  # chi lengths
    assert (many.double().T @ many.double() / 2**14 - torch.eye(DIM)).abs().max() < 0.05
    assert many.mean(0).abs().max() < 0.05
    assert torch.equal(orthogonal_rows(40, DIM, (2,)), rows)
    assert not torch.equal(orthogonal_rows(40, DIM, (4,)), rows)


def projection(model: LanguageModel) -> torch.Tensor:
    return model.blocks[0].mixer.feature_map.projection.clone()


def test_ranks_with_different_seeds_have_one_projection_at_all_times():
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(small_model("performer*2", EVERY_10))
    seen = []
    for step in (0, 9, 10, 25):
        for model in models:
            model.redraw(step)
        first, second = (projection(model) for model in models)
        assert torch.equal(first, second)
        seen.append(first)
    assert torch.equal(seen[0], seen[1])
    assert len({float(x.sum()) for x in seen}) == 3
    blocks = [block.mixer.feature_map.projection for block in models[0].blocks]
    assert not torch.equal(*blocks)
    other = small_model("performer", EVERY_10, "model.mixers.performer.projection_seed=1")
    assert not torch.equal(projection(other), seen[0])


class Watch(L.Callback):
    def __init__(self):
        self.seen = {}

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.seen[trainer.global_step] = projection(pl_module.model)


def trained_to(steps: int, folder=None, start=None) -> tuple[TrainingModule, dict]:
    settings = composed(*OVERRIDES)
    torch.manual_seed(0)
    model = small_model("performer", EVERY_10)
    stages = stages_of(settings.trainer, LENGTH, 6400)
    validation = [ValidationSet("", 1.0, 3.0)]
    module = TrainingModule(
        model, settings.optimizer, settings.schedule, settings.trainer, stages, validation
    )
    watch = Watch()
    config = model.settings.model_dump(mode="json")
    callbacks = [watch] if folder is None else [watch, Checkpoints(folder, 99, 1, 0, config)]
    trainer = L.Trainer(
        accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(module, DataLoader(Batches(), batch_size=None), ckpt_path=start)
    return module, watch.seen


def test_a_continued_run_draws_what_an_uninterrupted_one_draws(tmp_path):
    _, whole = trained_to(22)
    stopped, _ = trained_to(13, tmp_path)
    saved = load(latest(tmp_path))["state_dict"]
    name = "model.blocks.0.mixer.feature_map.projection"
    assert torch.equal(saved[name], whole[10 + 1])
    assert not torch.equal(whole[10], whole[11])  # the steps after 10 have the second projection
    _, seen = trained_to(22, tmp_path / "x", latest(tmp_path))
    assert all(torch.equal(seen[step], whole[step]) for step in range(14, 23))

    loaded = small_model("performer", EVERY_10)
    weights = {key.removeprefix("model."): value for key, value in saved.items()}
    loaded.load_state_dict(weights)
    tokens = torch.randint(64, (1, 20))
    assert torch.equal(loaded.eval()(tokens), stopped.model.eval()(tokens))
    loaded(tokens)
    assert torch.equal(projection(loaded), saved[name])  # evaluation draws nothing


def test_a_cache_is_not_continued_with_other_features():
    model = small_model("performer gla", EVERY_10).eval()
    tokens = torch.randint(64, (1, 20))
    _, cache = model.decode(tokens)
    model.redraw(9)
    model.decode(tokens[:, :1], cache)
    model.redraw(10)
    with pytest.raises(ValueError, match=r"other random features \(draws \(0,\)\) .* \(\(1,\)\)"):
        model.decode(tokens[:, :1], cache.reorder(torch.tensor([0])))


def test_the_projection_keeps_its_digits_in_a_16_bit_model():
    model = small_model("performer")
    before = projection(model)
    half = model.to(torch.bfloat16)
    kept = half.blocks[0].mixer.feature_map
    assert isinstance(kept, Favor)
    assert kept.projection.dtype == torch.float32
    assert torch.equal(kept.projection, before)
    assert "blocks.0.mixer.feature_map.projection" in half.state_dict()
    half.redraw(1000)
    assert not torch.equal(kept.projection, before)


def test_a_projection_that_is_never_redrawn_is_the_one_that_was_loaded():
    source = small_model("performer", EVERY_10)
    source.redraw(10)
    kept = small_model("performer", "model.mixers.performer.redraw_every=null")
    kept.load_state_dict(source.state_dict())
    kept.forget_draws()
    for step in (0, 1000):
        kept.redraw(step)
        assert torch.equal(projection(kept), projection(source))


def test_a_run_from_the_weights_of_another_draws_its_own_projection():
    of_one = "model.mixers.performer.projection_seed=1"
    for steps in (0, 10):
        source, new = small_model("performer", EVERY_10), small_model("performer", EVERY_10, of_one)
        expected = projection(new)
        source.redraw(steps)
        new.load_state_dict(source.state_dict())
        new.forget_draws()
        assert torch.equal(projection(new), projection(source))
        new.redraw(0)
        assert torch.equal(projection(new), expected)


def test_a_seed_that_loaded_features_would_not_follow_is_refused(tmp_path):
    trained_to(1, tmp_path)
    of_one, never = (
        f"model.mixers.performer.{x}" for x in ("projection_seed=1", "redraw_every=null")
    )
    load_weights(small_model("performer", never), latest(tmp_path))
    load_weights(small_model("performer", EVERY_10, of_one), latest(tmp_path))
    with pytest.raises(ValueError, match=r"performer.projection_seed=1 is not read .* seed is 0"):
        load_weights(small_model("performer", never, of_one), latest(tmp_path))
