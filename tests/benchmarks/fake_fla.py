"""A package laid out like FLA, and one like transformers, written to a folder."""

import textwrap
from pathlib import Path

NAIVE = """
import torch
from kernels import LinearState, linear_attention


def _run(q, k, v, decay, scale, S=None, z=None, normalize=False, beta=None):
    state = None if S is None else LinearState(S, z, None)
    out, last = linear_attention(
        q, k, v, decay, beta, scale=scale, normalize=normalize, state=state, backend="reference"
    )
    return out * FACTOR, last.S
"""

FUNCTIONS = {
    "gla": """
def naive_recurrent_gla(q, k, v, gk, initial_state=None, output_final_state=False):
    return _run(q, k, v, gk, q.shape[-1] ** -0.5, initial_state)
""",
    "simple_gla": """
def naive_recurrent_simple_gla(q, k, v, g, scale=None, initial_state=None):
    return _run(q, k, v, g, scale, initial_state)
""",
    "retention": """
def naive_retention(q, k, v):
    decay = torch.log1p(-(2.0 ** (-5 - torch.arange(q.shape[1]))))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return _run(q, k, v, decay, q.shape[-1] ** -0.5)[0].transpose(1, 2)
""",
    "linear_attn": """
def naive_recurrent_linear_attn(
    q, k, v, scale=None, initial_state=None, output_final_state=False, normalize=False
):
    if not normalize:
        return _run(q, k, v, None, scale, initial_state)
    S, z = initial_state
    out, S = _run(q, k, v, None, scale, S, z.squeeze(1), normalize=True)
    return out, (S, None)
""",
    "delta_rule": """
def delta_rule_recurrence(q, k, v, beta, initial_state=None, output_final_state=True):
    q, k, v, beta = (x.transpose(1, 2) for x in (q, k, v, beta))
    out, S = _run(q, k, v, None, q.shape[-1] ** -0.5, initial_state, beta=beta)
    return out.transpose(1, 2), S
""",
    "gated_delta_rule": """
def naive_recurrent_gated_delta_rule(
    q, k, v, beta, g, scale=None, initial_state=None, output_final_state=False
):
    return _run(q, k, v, g, scale, initial_state, beta=beta)
""",
    "kda": """
def naive_recurrent_kda(
    q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False
):
    return _run(q, k, v, g, scale, initial_state, beta=beta)
""",
}

CHUNKED = {
    "gla": "chunk_gla",
    "simple_gla": "chunk_simple_gla",
    "retention": "chunk_retention",
    "linear_attn": "chunk_linear_attn",
}


def write_fla(folder: Path, factor: float = 1.0) -> Path:
    """FLA; `factor` multiplies the references' outputs. Importing it imports transformers."""
    write(
        folder / "fla" / "__init__.py",
        """
        try:
            import transformers
        except ModuleNotFoundError as error:
            if error.name != "transformers":
                raise
        """,
    )
    write(folder / "fla" / "ops" / "__init__.py", "")
    for name in FUNCTIONS:
        operator = CHUNKED.get(name, f"chunk_{name}")
        write(folder / "fla" / "ops" / name / "__init__.py", f"def {operator}(): return {name!r}")
        naive = f"FACTOR = {factor}\n{NAIVE}{FUNCTIONS[name]}"
        write(folder / "fla" / "ops" / name / "naive.py", naive)
    return folder


def write_transformers(folder: Path) -> Path:
    """It imports what the other package named `kernels` offers, and Braid's does not."""
    write(folder / "transformers" / "__init__.py", "from kernels import kernelize\n")
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
