import importlib
import sys

import pytest
import torch
from fake_fla import write_fla, write_transformers


@pytest.fixture(autouse=True)
def one_thread() -> None:
    # The tensors are tiny: more threads only wait for each other.
    torch.set_num_threads(1)


@pytest.fixture
def fake_fla(tmp_path, monkeypatch):
    """Puts a stand-in for FLA, and for transformers, before whatever is installed."""
    hidden = ("fla", "transformers")
    before = {n: m for n, m in sys.modules.items() if n.split(".")[0] in hidden}

    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] in hidden]:
            del sys.modules[name]

    def install(factor: float = 1.0, transformers: bool = True) -> None:
        write_fla(tmp_path, factor)
        if transformers:
            write_transformers(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()

    forget()
    yield install
    forget()
    sys.modules.update(before)
