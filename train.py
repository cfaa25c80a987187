"""Trains a hybrid language model: python train.py [group=choice ...] [key=value ...]

    1. check every setting, also against the run that is continued; nothing is written before
    2. find the data set, or prepare it
    3. build the model and print its layer table; on a GPU, check its kernels
    4. plan the run's length; measure the machine if `trainer.minutes` limits it
    5. say what will be read and how often; open the run's folder: a new run, or the same command
       again continues it
    6. train
    7. validate on the whole held-out text; write a sample, plots and the summary

`python train.py --cfg job` prints every setting, `python train.py --help` the choices.
"""

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from conf.cli import hydra_main, override
from conf.continuing import FORCEABLE, may_change
from conf.paths import located
from conf.schema import TrainSettings

if TYPE_CHECKING:  # heavy imports wait until the settings hold
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from data.module import PackedDataModule
    from data.sets import Sets
    from model.network import LanguageModel
    from model.training.budget import Plan
    from model.training.metrics import Metrics
    from model.training.run_folder import RunFolder
    from model.training.stages import Stage


def check_job(settings: TrainSettings) -> "Path":
    """Checks one job of a sweep; returns its run's folder, which no two jobs may share."""
    from data.sets import check_given
    from model.training.ranks import ranks

    def checked() -> "Path":
        folder = check_settings(settings)[1].path
        check_given(settings.data, settings.tokenizer)
        return folder

    return ranks().decided(checked)


@hydra_main("train", TrainSettings, check=check_job)
def main(settings: TrainSettings) -> None:
    from model.training.ranks import ranks

    team = ranks()
    settings, folder, device, allowed, processes = team.decided(lambda: check_settings(settings))
    if processes > 1 and team.place.world == 1:
        from model.training.launch import launch, this_command

        code = launch(this_command(), processes)
        if code:
            sys.exit(code)
        return  # in a sweep, other jobs follow

    from rich import print as rich_print

    from data.binding import bind
    from data.epochs import epoch_table, repeats
    from data.module import PackedDataModule
    from data.rows import row_stages
    from data.sets import prepared_sets, weights_of
    from model.training.budget import planned
    from model.training.checkpoints import latest, resumable, step_of
    from model.training.kernel_check import check_kernels
    from model.training.schedules import check_schedule
    from model.training.stage_table import stage_table
    from model.training.stages import stages_of, total_steps

    sets, begun = team.decided(
        lambda: (prepared_sets(settings.data, settings.tokenizer), resumable(folder.checkpoints))
    )
    model = build_model(settings, sets, begun, team.is_first)
    trainer, seq_len = settings.trainer, settings.data.seq_len
    record = folder.path / "budget.json"

    def plan_length() -> "Plan":
        check_kernels(model, settings.trainer.precision, device)
        world = team.place.world
        plan = planned(record, model, settings.optimizer, trainer, seq_len, device, begun, world)
        if plan.tokens < trainer.tokens:
            check_schedule(settings.schedule, plan.tokens, trainer.minutes)
        return plan

    plan = team.decided(plan_length)
    stages = stages_of(trainer, seq_len, plan.tokens)
    # Opened before the run's folder: text that is too short, or a weight too small, leaves none.
    weights = weights_of(settings.data, sets)
    data = PackedDataModule(
        sets,
        settings.data,
        weights,
        row_stages(stages),
        val_rows=trainer.validation_rows,
        val_batches=trainer.validation_batches,
    )
    if team.is_first:
        if len(stages) > 1:
            rich_print(stage_table(stages))
        rich_print(epoch_table(data.train, sets, total_steps(stages)))
        for line in repeats(data.train, total_steps(stages)):
            print(line, file=sys.stderr)
    with located(folder.path), ExitStack() as held:

        def open_run() -> tuple["Path | None", dict[str, Any]]:
            """The checkpoint to continue from, and the run's configuration."""
            folder.open(settings, allowed, FORCEABLE)
            held.enter_context(folder.locked())
            # Under the lock: another process may have trained while this one measured.
            start = latest(folder.checkpoints) if resumable(folder.checkpoints) else None
            done = step_of(start) if start else 0
            bind(folder.path, sets, force=settings.data.force, step=done)
            plan.keep(record)
            return start, folder.config()

        start, config = team.decided(open_run)
        try:
            train(
                settings, folder, config, model, sets, data, stages, device.type, processes, start
            )
        except SystemExit:  # saved and stopped
            team.end_together()
            raise


def check_settings(
    settings: TrainSettings,
) -> tuple[TrainSettings, "RunFolder", "torch.device", list[str], int]:
    """Everything that can be checked before the data is read.

    Returns:
        the settings with every `auto` of the trainer replaced, the run's folder, the device, the
        keys that may differ from the saved ones of a run that is continued, and the number of
        processes per node.

    Raises:
        ValueError: what is wrong, what is allowed, what to type.
    """
    from data.sets import check_stage_weights
    from model.pattern import expand
    from model.training.run_folder import RunFolder
    from model.training.schedules import check_schedule
    from model.training.stages import stages_of

    folder = RunFolder.named(settings.run.root, settings.run.name)
    expand(settings.model.layers, settings.model.mixers)
    stages = stages_of(settings.trainer, settings.data.seq_len)
    check_stage_weights([stage.weights for stage in stages], settings.data)
    check_schedule(settings.schedule, settings.trainer.tokens)

    import torch

    from model.network import LanguageModel
    from model.training.checkpoints import resumable
    from model.training.device import pick_device, resolve
    from model.training.devices import check_shared, processes_per_node
    from model.training.kernel_check import check_choice
    from model.training.load import checkpoint_of
    from model.training.memory import check_memory
    from model.training.ranks import ranks

    device = pick_device(settings.trainer.device)
    processes = processes_per_node(settings.strategy, ranks().place, device)
    check_shared(stages, processes * settings.strategy.nodes)
    saved = folder.config(TrainSettings) if folder.exists else None
    trainer = resolve(settings.trainer, device, saved and saved["trainer"])
    settings = settings.model_copy(update={"trainer": trainer})
    allowed = may_change(settings, saved)
    folder.check(settings, allowed, FORCEABLE)
    if not resumable(folder.checkpoints) and settings.run.init_from is not None:
        checkpoint_of(settings.run.init_from, settings.run.root)
    # The vocabulary of a tokenizer that is there already is not known yet.
    prepared = settings.data.dir is not None or settings.data.sources is not None
    known = settings.tokenizer.path is None and not prepared
    with torch.device("meta"):  # widths are checked, no memory is taken
        model = LanguageModel(settings.model, settings.tokenizer.vocab_size if known else 1)
    check_choice(model, settings.trainer.kernels, device)
    model.check_length(settings.data.seq_len, "data.seq_len")
    model.check_length(settings.trainer.sample_tokens, "trainer.sample_tokens")
    for number, stage in enumerate(stages):
        name = "data" if settings.trainer.stages is None else f"trainer.stages.{number}"
        model.check_length(stage.seq_len, f"{name}.seq_len")
        try:
            model.set_rope_base(stage.rope_base)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        check_memory(model, stage, device)
    return settings, folder, device, allowed, processes


def build_model(
    settings: TrainSettings, sets: "Sets", begun: bool, is_first: bool
) -> "LanguageModel":
    """The network with its first weights, or those of `run.init_from`; prints the layer table.

    begun: the run has a checkpoint of its own and needs no other one; that may be gone.
    is_first: the process that prints.

    Raises:
        ValueError: the weights of `run.init_from` are for another tokenizer or architecture.
    """
    import torch
    from rich import print as rich_print

    from data.binding import check_tokenizer
    from data.sets import first
    from model.layer_table import layer_table
    from model.network import LanguageModel
    from model.training.load import checkpoint_of, load_weights, run_of

    torch.manual_seed(settings.seed)
    data_folder, index = first(sets)
    model = LanguageModel(settings.model, index.vocab_size)
    model.kernels = settings.trainer.kernels
    if settings.run.init_from is not None and not begun:
        source = checkpoint_of(settings.run.init_from, settings.run.root)
        origin = run_of(source)
        if origin is not None:
            given = settings.data.dir is not None or settings.data.sources is not None
            check_tokenizer(origin.path, data_folder, index, given)
        elif is_first:
            print(f"note: {source} is in no run's folder, so that its tokenizer is not known")
        load_weights(model, source)
    if is_first:
        rich_print(layer_table(model, settings.data.seq_len))
    return model


def train(
    settings: TrainSettings,
    folder: "RunFolder",
    config: dict[str, Any],
    model: "LanguageModel",
    sets: "Sets",
    data: "PackedDataModule",
    stages: "Sequence[Stage]",
    accelerator: str,
    processes: int,
    start: "Path | None",
) -> None:
    """Trains all `stages`, from the checkpoint `start` if there is one.

    config: of the run, as it is saved.
    processes: per node.
    """
    _quiet_lightning()
    import lightning as L
    import torch

    from data.sets import validation_sets
    from model.training.catch_up import CatchUpValidation, validate_last_step
    from model.training.checkpoints import Checkpoints
    from model.training.metrics import Metrics
    from model.training.module import TrainingModule, ValidationSet
    from model.training.progress import Progress
    from model.training.ranks import ranks
    from model.training.stages import total_steps
    from model.training.stop import Stop, StopRequested
    from model.training.stop_at_step import StopAtStep
    from model.training.strategies import BraidEnvironment, lightning_strategy
    from model.training.tracking import make_tracker

    team = ranks()
    options = settings.trainer
    module = TrainingModule(
        model,
        settings.optimizer,
        settings.schedule,
        options,
        stages,
        [ValidationSet(*one) for one in validation_sets(settings.data, sets)],
    )
    if options.compile == "on":
        model.compile_blocks()
        if accelerator == "cpu" and team.is_first:
            print(
                "note: trainer.compile=on: the first step and the first validation compile each "
                "kind of block, which takes a CPU a minute or so per kind",
                flush=True,
            )
    tracker = make_tracker(settings.logger, folder, config, team.place.rank)
    metrics = Metrics(folder.metrics_file, settings.logger.log_every, tracker, data.train.epochs)
    checkpoints = Checkpoints(
        folder.checkpoints,
        options.checkpoint_every,
        options.keep_last,
        options.keep_every,
        settings.model.model_dump(mode="json"),
    )
    trainer = L.Trainer(
        accelerator=accelerator,
        strategy=lightning_strategy(settings.strategy),
        devices=processes,
        num_nodes=settings.strategy.nodes,
        plugins=[BraidEnvironment(team.place)],
        precision=options.precision,
        max_steps=total_steps(stages),
        max_epochs=-1,
        val_check_interval=options.validate_every,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        default_root_dir=folder.path,
    )
    with tracker:
        with Stop() as stop:
            team.meet(stop)
            team.connect(torch.device(accelerator))
            trainer.callbacks += [
                metrics,
                Progress(stages),
                checkpoints,
                StopAtStep(stop, checkpoints),
                CatchUpValidation(folder.metrics_file),
            ]
            try:
                trainer.fit(module, data, ckpt_path=start)
                validate_last_step(trainer, module, data, folder.metrics_file)
            except StopRequested as stopped:
                if team.is_first:
                    print(stopped, file=sys.stderr)
                sys.exit(stop.exit_code)
        team.disconnect()
        if not team.is_first:
            return
        upload = [tracker.upload_command] if tracker.upload_command else []
        steps = trainer.global_step
        module.enter_stage(max(0, steps - 1))  # a finished run has not been in any
        values = finish(settings, folder, model, sets, metrics, steps, upload)
        tracker.summary(values)


def finish(
    settings: TrainSettings,
    folder: "RunFolder",
    model: "LanguageModel",
    sets: "Sets",
    metrics: "Metrics",
    steps: int,
    upload: list[str],
) -> dict[str, Any]:
    """Validates on the whole held-out text; writes a sample, plots and the summary."""
    from data.binding import tokenizer_of
    from eval import validation_scores
    from generate import continuation
    from model.training.checkpoints import latest
    from model.training.plots import draw
    from model.training.summary import summarize

    options = settings.trainer
    scores = validation_scores(
        model, sets, settings.data, options.validation_rows, options.precision
    )
    files = [latest(folder.checkpoints)]
    if options.plots:
        baselines = {
            "gzip -9": scores["gzip_bits_per_byte"],
            "token frequencies": scores["unigram_bits_per_byte"],
        }
        files += draw(folder.metrics_file, folder.plots, baselines, scores)
    model.eval()
    tokenizer = tokenizer_of(folder.path)
    if options.sample_tokens:
        text = continuation(
            model, tokenizer, "", options.sample_tokens, settings.seed, temperature=0.8, top_p=0.95
        )
        files.append(folder.path / "sample.txt")
        files[-1].write_text("".join(text) + "\n", encoding="utf-8")
    # conf/generate.yaml and conf/eval.yaml look in runs/ unless told otherwise.
    root = settings.run.root
    run = folder.name if root == "runs" else f"{folder.name} {override('root', root)}"
    return summarize(
        folder,
        **scores,
        train_seconds=metrics.train_seconds,
        tokens=metrics.tokens,
        parameters=model.num_parameters(),
        steps=steps,
        files=files,
        next_commands=[
            f'python generate.py run={run} prompt="def "',
            f"python eval.py run={run}",
            *upload,
        ],
    )


def _quiet_lightning() -> None:
    """Leaves only Lightning's warnings that say something about this run."""
    import logging
    import warnings

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    # Rows are read from memory maps: loader processes would only cost start-up time.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated.*")
    # On a machine with SLURM it thinks that one process must be a mistake.
    warnings.filterwarnings("ignore", message=".*`srun` command is available.*")
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*")  # these sums are over all ranks


if __name__ == "__main__":
    main()
