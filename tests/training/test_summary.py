import io
import json

from rich.console import Console

from model.training.run_folder import RunFolder
from model.training.summary import summarize


def test_the_summary_is_saved_and_printed_with_files_and_next_commands(tmp_path):
    folder = RunFolder(tmp_path / "first")
    folder.open({}, may_change=[])
    out = io.StringIO()
    returned = summarize(
        folder,
        val_nats_per_token=2.5,
        val_bits_per_byte=1.6,
        unigram_bits_per_byte=4.7,
        gzip_bits_per_byte=2.2,
        train_seconds=185.0,
        tokens=2_000_000,
        parameters=1_234_567,
        steps=489,
        files=[folder.checkpoints / "step-00000489.ckpt", folder.plots / "loss[1].png"],
        next_commands=["python generate.py run=first 'prompt=def [x]'"],
        console=Console(file=out, soft_wrap=True),
    )
    assert json.loads(folder.summary_file.read_text()) == returned
    assert set(returned) == {
        "run",
        "steps",
        "tokens",
        "parameters",
        "train_seconds",
        "tokens_per_second",
        "val_nats_per_token",
        "val_bits_per_byte",
        "unigram_bits_per_byte",
        "gzip_bits_per_byte",
        "files",
    }
    assert returned["tokens_per_second"] == round(2_000_000 / 185, 1)
    text = out.getvalue()
    for expected in (
        "first",
        "2.5000",
        "1.6000",
        "4.7000",
        "2.2000",
        "3m05s",
        "2,000,000",
        "10,811",
        "1,234,567",
        "step-00000489.ckpt",
        "loss[1].png",
        "metrics.jsonl",
        "python generate.py run=first 'prompt=def [x]'",
    ):
        assert expected in text
