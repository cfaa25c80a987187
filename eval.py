"""Validation loss of a trained model: python eval.py run=quickstart

The whole validation split of the run's data set, in nats per token and bits per byte, beside two
simple compressors on the same text.
"""

from conf.cli import hydra_main
from conf.schema import EvalSettings


@hydra_main("eval", EvalSettings)
def main(settings: EvalSettings) -> None:
    from data.runs import data_of_run
    from model.training.device import pick_device
    from model.training.load import find_checkpoint, load_model
    from model.training.summary import print_scores

    device = pick_device(settings.device)
    folder, path = find_checkpoint(settings.root, settings.run, settings.checkpoint)
    model, _ = load_model(path, device)
    print(f"{path}")


if __name__ == "__main__":
    main()
