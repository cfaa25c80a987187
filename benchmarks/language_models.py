"""The models of `python -m benchmarks.language`: what differs between them, at equal parameters.

The steps from no decay to GLA are those of the ablation in Yang et al., 2024 (Gated Linear
Attention, table 4): one architecture of which the decay alone changes.
"""

from dataclasses import dataclass
from functools import cache

import torch

# One head of 128 channels, the source's width of a head.
BLOCKS, D_MODEL, HEADS, FFN_DIM = 4, 128, 1, 352

# Where learned memory lengths start, in tokens: what is best for both learned decays, after 1 M
# tokens with seed 0, of [16,512], [23.08,23.08] (the source's: a gate of 0), [4,32] and [1,16].
_START = "[1,16]"


@dataclass(frozen=True)
class Model:
    """One model; `overrides` are what it types to train.py beside what all models share.

    published: perplexity of the source's model with this decay, 340 M parameters and 15 B tokens.
    """

    name: str
    meaning: str
    overrides: tuple[str, ...]
    published: float | None = None


def _linear(decay: str, memory: str = "null") -> tuple[str, ...]:
    return (
        f"model.layers=gla*{BLOCKS}",
        f"model.mixers.gla.decay={decay}",
        f"model.mixers.gla.memory_length={memory}",
    )


def _hybrid(layers: str) -> tuple[str, ...]:
    return (f"model.layers={layers}", f"model.mixers.gla.memory_length={_START}")


MODELS = {
    model.name: model
    for model in (
        Model("none", "no decay", _linear("none"), 23.21),
        Model("fixed", "RetNet's decay, fixed per head", _linear("retnet"), 16.55),
        Model("scalar", "a decay per head and token", _linear("simple_gla", _START), 15.56),
        Model("gla", "a decay per channel and token", _linear("gla", _START), 14.77),
        Model("scalar_16_512", "scalar, from Braid's usual memories", _linear("simple_gla")),
        Model("gla_16_512", "gla, from Braid's usual memories", _linear("gla")),
        Model("softmax", "softmax attention alone", (f"model.layers=softmax*{BLOCKS}",)),
        Model("gla_3to1", "three GLA blocks, one softmax", _hybrid("gla*3 softmax")),
        Model("gla_1to1", "GLA and softmax in turns", _hybrid("(gla softmax)*2")),
    )
}
ORDER = ("none", "fixed", "scalar", "gla")  # from the highest published perplexity to the lowest
PURE, HYBRIDS = ("gla", "softmax"), ("gla_3to1", "gla_1to1")

# No short convolutions, which the source's models do not have, and which do a part of what decays
# do; attention starts without a look-up in its weights, which would need them.
_SHARED = (
    f"model.d_model={D_MODEL}",
    f"model.mixers.gla.heads={HEADS}",
    "model.mixers.gla.expand_k=1.0",
    "model.mixers.gla.conv_width=0",
    f"model.mixers.softmax.heads={HEADS}",
    f"model.mixers.softmax.kv_heads={HEADS}",
    "model.mixers.softmax.conv_width=0",
    "model.mixers.softmax.recall_init=false",
    "model.mixers.softmax.rope_base=10000.0",
)


def overrides_of(name: str) -> list[str]:
    """What model `name` types to train.py, its feed-forward width included.

    The width is the one that brings its parameters nearest to those of `gla` with FFN_DIM.
    """
    given = [*_SHARED, *MODELS[name].overrides]
    more = _parameters(tuple(given)) - _parameters((*_SHARED, *MODELS["gla"].overrides))
    return [*given, f"model.ffn_dim={FFN_DIM - round(more / (3 * BLOCKS * D_MODEL))}"]


@cache
def _parameters(overrides: tuple[str, ...]) -> int:
    """Of the blocks with FFN_DIM; embeddings and head are the same in all models."""
    from hydra import compose, initialize_config_dir

    from conf.cli import CONF, rewrite_overrides, validate
    from conf.schema import TrainSettings
    from model.network import LanguageModel

    typed = rewrite_overrides([*overrides, f"model.ffn_dim={FFN_DIM}"], ())
    with initialize_config_dir(str(CONF), version_base="1.3"):
        settings = validate(compose("train", typed), TrainSettings)
    with torch.device("meta"):
        model = LanguageModel(settings.model, 1)
    return sum(parameter.numel() for parameter in model.blocks.parameters())
