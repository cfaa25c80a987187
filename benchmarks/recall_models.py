"""The models of `python -m benchmarks.recall`: two blocks each, from the presets of conf/mixer/.

A model is named by its layer pattern; one mixer stands for two blocks of it. `window16` and
`window64` are the preset `window` over so many tokens: two blocks of the first see 31 tokens back,
less than the distance of most questions. Hybrids have their attention first, and with softmax
attention last, too. `gla-16` has keys of 16 channels instead of what is usual:
d_model times the preset's expand_k.

Learned decays start with memories of 256 to 4,096 tokens, since a row has to be kept to its end;
`gla_16_512` starts as GLA usually does here, with 16 to 512.

As in Zoology, every mixer has a short convolution (of 4 taps): with it one layer can compare a
token with the one before another. Keys and values get it; in linear mixers queries, too. Softmax
attention and windows have no positions, the head is the embedding, and mixers have one head; but
RetNet has 4, whose fixed memories are 32 to 256 tokens.
"""

import torch

from benchmarks.presets import preset
from model.config import MixerSettings, ModelSettings
from model.network import LanguageModel

D_MODEL, FFN_DIM, CONV_WIDTH = 64, 128, 4
FAMILIES = {
    "attention": ("softmax", "window64", "window16"),
    "no decay": ("linear", "performer", "taylor"),
    "decay": ("retnet", "gla", "gla_16_512", "mamba2", "hgrn2"),
    "delta rule": ("deltanet", "gated_deltanet", "kda"),
    "hybrid": (
        "softmax linear",
        "softmax gla",
        "window64 linear",
        "window64 gla",
        "linear softmax",
        "gla softmax",
    ),
}
MODELS = tuple(name for names in FAMILIES.values() for name in names)
# {mixer: models of it by key width}; the state of the last is 8 times that of the first.
SIZES = {
    "linear": {16: "linear-16", 32: "linear-32", 64: "linear", 128: "linear-128"},
    "gla": {16: "gla-16", 32: "gla", 64: "gla-64", 128: "gla-128"},
    "deltanet": {16: "deltanet-16", 32: "deltanet-32", 64: "deltanet", 128: "deltanet-128"},
}
RESIZED = tuple(name for sizes in SIZES.values() for name in sizes.values() if "-" in name)
_LONG = {"memory_length": [256.0, 4096.0]}
_OWN = {
    "retnet": {"heads": 4},
    "taylor": {"expand_k": 16 / D_MODEL},  # 153 features, as published
    **dict.fromkeys(("gla", "mamba2", "gated_deltanet", "kda"), _LONG),
}


def build(model: str, vocab_size: int, seed: int) -> LanguageModel:
    """Model `model` with new weights that follow from `seed`, float32 on the CPU."""
    names = model.split()
    mixers = {name.replace("-", "_"): _mixer(name) for name in names}
    settings = ModelSettings(
        layers=" ".join(2 * list(mixers) if len(names) == 1 else mixers),
        d_model=D_MODEL,
        ffn_dim=FFN_DIM,
        tie_embeddings=True,
        norm_eps=1e-6,
        init="depth_scaled",
        init_std=D_MODEL**-0.5,
        embedding_std=D_MODEL**-0.5,
        mixers=mixers,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LanguageModel(settings, vocab_size)


def _mixer(name: str) -> MixerSettings:
    if name.startswith("window"):
        window = int(name.removeprefix("window"))
        return preset(
            "window", window=window, heads=1, kv_heads=1, conv_width=CONV_WIDTH, rope_base=None
        )
    if name == "softmax":
        return preset(name, heads=1, kv_heads=1, conv_width=CONV_WIDTH, rope_base=None)
    name, _, width = name.partition("-")
    changes = {"heads": 1, "conv_width": CONV_WIDTH, **_OWN.get(name, {})}
    if width:
        changes["expand_k"] = int(width) / D_MODEL
    return preset(name.removesuffix("_16_512"), **changes)
