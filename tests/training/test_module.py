"""The training step: normalisation by targets, non-finite gradients, clipping, compiled names."""

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

from model.training.checkpoint_io import load
from model.training.checkpoints import Checkpoints, latest
from model.training.module import NonFiniteError, TrainingModule, ValidationSet
from model.training.stages import stages_of
from tests.composing import composed, small_model

ROWS, LENGTH = 4, 16
OVERRIDES = (
    f"trainer.batch_tokens={ROWS * LENGTH}",
    "trainer.tokens=6400",
    "trainer.max_skipped_steps=3",
    "schedule.warmup=0",
    "schedule.decay=0",
)


class Batches(IterableDataset):
    """The batch of a step is a function of its number; labels have gaps of varying size."""

    def __iter__(self):
        step = 0
        while True:
            generator = torch.Generator().manual_seed(step)
            tokens = torch.randint(64, (ROWS, LENGTH + 1), generator=generator)
            labels = tokens[:, 1:].clone()
            labels[0, : 3 * (step % 5)] = -100
            segments = (torch.arange(LENGTH) > step % LENGTH).long().expand(ROWS, -1)
            yield {"tokens": tokens[:, :-1], "labels": labels, "segments": segments}
            step += 1


def module_of(*overrides, layers="gla softmax", compiled=False) -> TrainingModule:
    settings = composed(*OVERRIDES, *overrides)
    torch.manual_seed(0)
    model = small_model(layers)
    if compiled:
        for block in model.blocks:
            block.compile(backend="eager", dynamic=False)
    stages = stages_of(settings.trainer, LENGTH)
    validation = [ValidationSet("", 1.0, 3.0)]
    return TrainingModule(
        model, settings.optimizer, settings.schedule, settings.trainer, stages, validation
    )


def fit(module: TrainingModule, steps: int, *callbacks, ckpt_path=None) -> L.Trainer:
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
    trainer.fit(module, DataLoader(Batches(), batch_size=None), ckpt_path=ckpt_path)
    return trainer


def test_the_loss_is_a_sum_over_micro_batches_divided_by_all_targets():
    batch = next(iter(Batches()))
    for rows in (1, 3, "null"):
        module = module_of(f"trainer.micro_batch_rows={rows}")
        logits = module.model(batch["tokens"], batch["segments"])
        expected = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        fit(module, 1)
        assert float(module.last_metrics["loss"]) == pytest.approx(float(expected), rel=1e-5)


def test_gradients_are_clipped_to_the_norm():
    seen = []

    class Look(L.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            norms = [p.grad.norm() for p in pl_module.parameters() if p.grad is not None]
            seen.append(float(torch.stack(norms).norm()))

    module = module_of("trainer.clip_grad_norm=0.01")
    fit(module, 2, Look())
    assert seen == pytest.approx([0.01, 0.01], rel=1e-3)
    assert float(module.last_metrics["grad_norm"]) > 0.1


class Poison(L.Callback):
    """Makes the gradient non-finite at chosen steps."""

    def __init__(self, steps):
        self.steps = steps

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step + 1 in self.steps:
            weight = pl_module.model.norm.weight
            handle = weight.register_hook(lambda grad: grad * float("nan"))
            self.handle = handle

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step in self.steps:
            self.handle.remove()


def test_a_step_with_a_non_finite_gradient_changes_nothing_and_is_counted():
    states = {}

    class Keep(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            states[trainer.global_step] = {
                name: value.clone() for name, value in pl_module.state_dict().items()
            }

    module = module_of()
    trainer = fit(module, 5, Poison({3}), Keep())
    assert trainer.global_step == 5
    assert module.last_metrics["skipped_steps"] == 1
    assert all(torch.equal(states[2][name], states[3][name]) for name in states[2])
    assert any(not torch.equal(states[3][name], states[4][name]) for name in states[2])


def test_too_many_non_finite_steps_stop_the_run_with_the_last_good_checkpoint(tmp_path):
    module = module_of()
    checkpoints = Checkpoints(tmp_path, 2, 2, 0, {})
    with pytest.raises(NonFiniteError, match="3 optimizer steps in a row") as error:
        fit(module, 20, Poison(set(range(5, 20))), checkpoints)
    assert isinstance(error.value, ValueError)  # which commands print as one line
    state = load(latest(tmp_path))["state_dict"]
    assert all(bool(torch.isfinite(value).all()) for value in state.values())


@pytest.mark.parametrize("tied", ["true", "false"])
def test_checkpoints_of_compiled_and_plain_models_load_into_each_other(tmp_path, tied):
    tie = (f"model.tie_embeddings={tied}", "model.embedding_std=0.02")
    outputs, names = {}, {}
    tokens = torch.randint(64, (1, 12))
    for compiled in (False, True):
        torch.manual_seed(0)
        module = module_of(*tie, compiled=compiled)
        fit(module, 2, Checkpoints(tmp_path / str(compiled), 2, 1, 0, {}))
        names[compiled] = sorted(load(latest(tmp_path / str(compiled)))["state_dict"])
        outputs[compiled] = module.model.eval()(tokens)
    assert names[False] == names[True]
    for saved in (False, True):
        for compiled in (False, True):
            module = module_of(*tie, compiled=compiled)
            path = latest(tmp_path / str(saved))
            fit(module, 2, Checkpoints(tmp_path / "x", 99, 1, 0, {}), ckpt_path=path)
            assert torch.equal(module.model.eval()(tokens), outputs[saved])


def test_validation_reports_nats_per_token_and_bits_per_byte():
    module = module_of()
    batches = [batch for _, batch in zip(range(3), Batches(), strict=False)]
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False,
    )  # fmt: skip
    (result,) = trainer.validate(module, DataLoader(batches, batch_size=None), verbose=False)
    logits = torch.cat([module.model(b["tokens"], b["segments"]).flatten(0, 1) for b in batches])
    labels = torch.cat([b["labels"].flatten() for b in batches])
    expected = float(F.cross_entropy(logits, labels))
    assert result["val_nats_per_token"] == pytest.approx(expected, rel=1e-5)
    assert result["val_bits_per_byte"] == pytest.approx(expected / 0.693147 / 3.0, rel=1e-5)
