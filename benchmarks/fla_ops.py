"""flash-linear-attention (FLA) in one process with Braid.

FLA imports transformers, which imports a package named `kernels` where it finds one; run from this
repository it finds Braid's, and fails. FLA's operators need neither, and `import fla` puts up with
a missing transformers: so transformers is out of reach while FLA is imported, and only then. This
holds whether or not transformers and the other `kernels` are installed.
"""

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

_CHUNKED = {
    "gla": ("fla.ops.gla", "chunk_gla"),
    "retnet": ("fla.ops.retention", "chunk_retention"),
    "simple": ("fla.ops.simple_gla", "chunk_simple_gla"),
    "linear": ("fla.ops.linear_attn", "chunk_linear_attn"),
    "kda": ("fla.ops.kda", "chunk_kda"),
    "gated_deltanet": ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
    "deltanet": ("fla.ops.delta_rule", "chunk_delta_rule"),
}
_INSTALL = "pip install flash-linear-attention"


class FlaMissing(Exception):
    """FLA cannot be used here; the message says why and what to type."""


def chunked_ops() -> dict[str, Callable[..., Any]]:
    """FLA's chunked operators by Braid's names for the same recurrences.

    Raises:
        FlaMissing: FLA is not installed, or this version of it cannot be imported.
    """
    _folder()
    try:
        with out_of_reach("transformers"):
            return {
                op: getattr(importlib.import_module(module), name)
                for op, (module, name) in _CHUNKED.items()
            }
    except Exception as error:  # another project's import: whatever it raises is its answer
        raise FlaMissing(
            f"flash-linear-attention {version()} cannot be imported "
            f"({type(error).__name__}: {error}); try another version: {_INSTALL}"
        ) from error


def naive_module(op: str) -> ModuleType:
    """FLA's plain reference fla/ops/OP/naive.py, loaded alone: it needs torch and einops only.

    Raises:
        FlaMissing: FLA, the file or einops is not there.
    """
    path = _folder() / "ops" / op / "naive.py"
    spec = importlib.util.spec_from_file_location(f"fla_naive_{op}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        raise FlaMissing(
            f"the reference {path.name} of {op} cannot be loaded ({error}): {_INSTALL} einops"
        ) from error
    return module


def version() -> str:
    """Of the package that holds the operators."""
    for package in ("fla-core", "flash-linear-attention"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of unknown version"


@contextmanager
def out_of_reach(package: str) -> Iterator[None]:
    """`import package` raises ModuleNotFoundError inside, as if it were not installed."""
    before = sys.modules.get(package)
    sys.modules[package] = None
    try:
        yield
    finally:
        del sys.modules[package]
        if before is not None:
            sys.modules[package] = before


@contextmanager
def searches_compiled_side_by_side(workers: int) -> Iterator[None]:
    """Inside, Triton compiles all candidates of an automatic search at once before it times them.

    FLA compiles several hundred configurations per operator, by default one after another. The
    search itself, its candidates and its timings stay as they are.
    """
    from triton.runtime._async_compile import AsyncCompileMode, active_mode
    from triton.runtime.autotuner import Autotuner

    run, searched = Autotuner.run, set()

    def compile_then_run(self: Any, *arguments: Any, **options: Any) -> Any:
        compiled = (id(self), tuple(str(options.get(key)) for key in self.keys))
        if compiled not in searched and len(self.configs) > 1:
            searched.add(compiled)
            ahead = {key: value for key, value in options.items() if key != "warmup"}
            # Configurations that do not fit this GPU fail here as they will in the search.
            pool = ThreadPoolExecutor(workers)
            try:
                with AsyncCompileMode(pool, ignore_errors=True):
                    self.warmup(*arguments, **ahead)
            finally:
                active_mode.set(None)  # a time limit may end the mode while it waits for the pool
                pool.shutdown(cancel_futures=True)
        return run(self, *arguments, **options)

    Autotuner.run = compile_then_run
    try:
        yield
    finally:
        Autotuner.run = run


def _folder() -> Path:
    """Where FLA is installed; nothing of it is imported."""
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        raise FlaMissing(f"flash-linear-attention is not installed: {_INSTALL}")
    return Path(next(iter(spec.submodule_search_locations)))
