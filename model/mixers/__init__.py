"""Mixers: how the tokens of a block see one another.

Every mixer is a module with

- `forward(x, info, state=None, keep_state=False) -> (y, state)`: x and y [B, T, d_model]; `info`
  is the `SequenceInfo` of the rows; `state` is what an earlier call returned for the tokens before
  these (it needs `info.segments`), and the returned state is None unless `keep_state`. States are
  (nested) named tuples of tensors with the batch first, and are never changed in place;
- `flops_per_token(length)`: forward floating-point operations per token at a row length;
- `state_bytes(length)`: bytes that decoding carries per row after `length` tokens;
- `residual_outputs()`: the projections that write into the residual stream (for initialisation);
- optionally `prepare(info)`: puts what several layers share into the `SequenceInfo` of a batch,
  before the first block and outside of what is compiled.

A new kind of mixer is one class, one settings class (a part of `MixerSettings` in model/config.py)
and one line below.
"""

from torch import nn

from model.config import MixerSettings, ModelSettings
from model.conv_config import ConvSettings
from model.linear_config import LinearSettings
from model.mixers.conv import ConvMixer
from model.mixers.linear import LinearMixer
from model.mixers.parallel import ParallelMixers
from model.mixers.softmax import SoftmaxMixer
from model.mixers.sparse_linear import SparseLinearMixer
from model.pattern import Depth
from model.softmax_config import SoftmaxSettings
from model.sparse_linear_config import SparseLinearSettings

_MIXERS = {
    SoftmaxSettings: SoftmaxMixer,
    LinearSettings: LinearMixer,
    SparseLinearSettings: SparseLinearMixer,
    ConvSettings: ConvMixer,
}


def build_mixer(branches: tuple[str, ...], settings: ModelSettings, depth: Depth) -> nn.Module:
    """The mixer of one block: `branches` names one entry of `model.mixers`, or several in parallel.

    Raises:
        ValueError: naming the mixer and the widths that do not fit the model.
    """
    built = []
    for name in branches:
        mixer = settings.mixers[name]
        try:
            built.append(mixer_class(mixer)(mixer, settings.d_model, settings.norm_eps, depth))
        except ValueError as error:
            raise ValueError(f"model.mixers.{name}: {error}") from None
    return built[0] if len(built) == 1 else ParallelMixers(built)


def mixer_class(settings: MixerSettings) -> type[nn.Module]:
    return _MIXERS[type(settings)]
