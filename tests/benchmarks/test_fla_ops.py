"""FLA is imported beside Braid, whatever else is installed."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernels
from benchmarks import fla_ops


def test_an_ordinary_import_of_fla_finds_the_wrong_kernels_package(fake_fla):
    fake_fla()
    with pytest.raises(ImportError, match="kernelize"):
        importlib.import_module("fla")


@pytest.mark.parametrize("transformers", [True, False])
def test_chunked_operators_are_imported_with_and_without_transformers(fake_fla, transformers):
    fake_fla(transformers=transformers)
    ops = fla_ops.chunked_ops()
    names = {op: function() for op, function in ops.items()}
    assert names == {
        "gla": "gla", "retnet": "retention", "simple": "simple_gla", "linear": "linear_attn",
        "kda": "kda", "gated_deltanet": "gated_delta_rule", "deltanet": "delta_rule",
    }  # fmt: skip
    assert "transformers" not in sys.modules
    assert sys.modules["kernels"] is kernels


def test_a_package_is_out_of_reach_only_inside():
    import json.tool

    with fla_ops.out_of_reach("json"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("json.decoder_of_nothing")
    assert importlib.import_module("json.tool") is json.tool


def test_missing_fla_is_one_sentence_that_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla", None)
    with pytest.raises(fla_ops.FlaMissing, match="not installed: pip install flash-linear-att"):
        fla_ops.chunked_ops()


def test_fla_that_cannot_be_imported_is_named_with_its_error(fake_fla, tmp_path):
    fake_fla()
    (tmp_path / "fla" / "ops" / "gla" / "__init__.py").write_text("import a_module_nobody_has\n")
    with pytest.raises(fla_ops.FlaMissing, match=r"cannot be imported.*a_module_nobody_has"):
        fla_ops.chunked_ops()


def test_naive_references_are_loaded_without_importing_fla(fake_fla):
    fake_fla()
    module = fla_ops.naive_module("gla")
    assert callable(module.naive_recurrent_gla)
    assert "fla" not in sys.modules


@pytest.mark.long
def test_all_candidates_of_a_search_are_compiled_once_before_it_starts(tmp_path):
    script = Path(__file__).parent / "search_ahead.py"
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "TRITON_CACHE_DIR": str(tmp_path)}
    del environment["TRITON_INTERPRET"]  # the interpreter compiles nothing
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # Two candidates per key; the same key a second time compiles nothing more.
    assert done.stdout.split() == ["2", "2", "4"]


def test_a_time_limit_during_compilation_leaves_triton_as_it_was(monkeypatch):
    from triton.runtime import _async_compile
    from triton.runtime.autotuner import Autotuner

    class Search:
        keys, configs = (), (1, 2)

        def warmup(self):
            assert _async_compile.active_mode.get() is not None

    def stopped(*_):
        raise TimeoutError

    before = Autotuner.run
    monkeypatch.setattr(_async_compile.AsyncCompileMode, "__exit__", stopped)
    with pytest.raises(TimeoutError), fla_ops.searches_compiled_side_by_side(1):
        Autotuner.run(Search())
    assert _async_compile.active_mode.get() is None
    assert Autotuner.run is before
