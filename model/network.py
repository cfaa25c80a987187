"""The language model: embedding, pre-norm blocks with the mixers of the layer pattern, head."""

import math

import torch
from torch import Tensor, nn

from model.cache import Cache, advance
from model.config import ModelSettings
from model.layers import RMSNorm, SwiGLU
from model.mixers import build_mixer
from model.mixers.softmax import SoftmaxMixer
from model.pattern import Depth, expand, used_names
from model.sequence import SequenceInfo

# How sure the head is of a token that was looked up alone, in nats above an unrelated one. Measured
# on the quickstart from 5 to 31: the loss after 110 steps falls up to here.
_RECALL_LOGIT = 22

# One for training and one for validation, each again with lengths left open, and room for callers
# that change more than the length (a mask, a precision).
_PROGRAMS_PER_KIND = 8


class Block(nn.Module):
    """x + mixer(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, branches: tuple[str, ...], settings: ModelSettings, depth: Depth) -> None:
        super().__init__()
        self.name = "+".join(branches)
        self.mixer_norm = RMSNorm(settings.d_model, settings.norm_eps)
        self.mixer = build_mixer(branches, settings, depth)
        self.ffn_norm = RMSNorm(settings.d_model, settings.norm_eps)
        self.ffn = SwiGLU(settings.d_model, settings.ffn_dim)

    def forward(self, x, info: SequenceInfo, state=None, keep_state: bool = False):
        y, state = self.mixer(self.mixer_norm(x), info, state, keep_state)
        x = x + y
        return x + self.ffn(self.ffn_norm(x)), state


class LanguageModel(nn.Module):
    """A decoder-only language model over token ids [B, T].

    Args:
        settings: the `model` section of the configuration.
        vocab_size: number of token ids.

    Raises:
        ValueError: a layer pattern or widths that do not fit, naming the key.

    Attribute `kernels` chooses between the forms of every recurrence and of the layers around it:
    "triton", "torch", or "auto": triton on GPUs.
    """

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        super().__init__()
        self.settings = self._built_with = settings
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, settings.d_model)
        pattern = expand(settings.layers, settings.mixers)
        self.blocks = nn.ModuleList(
            Block(branches, settings, Depth(index, len(pattern)))
            for index, branches in enumerate(pattern)
        )
        self.norm = RMSNorm(settings.d_model, settings.norm_eps)
        self.head = nn.Linear(settings.d_model, vocab_size, bias=False)
        if settings.tie_embeddings:
            self.head.weight = self.embedding.weight
        self.compiled = False
        self.kernels = "auto"
        parts = list(self.blocks.modules())
        self._redrawn = [part for part in parts if hasattr(part, "redraw")]
        limits = [part.max_length for part in parts if hasattr(part, "max_length")]
        self.max_length: int | None = min(limits, default=None)
        self.init_weights()

    def compile_blocks(self) -> None:
        """Compiles each block with torch.compile when it is first called.

        Blocks of one kind share a program per kind of input: training or not, and from the second
        length on one for all lengths.
        """
        self.compiled = True
        kinds = len({block.name for block in self.blocks})
        # All blocks run one function, and beyond the limit torch would give up compiling it.
        limits = torch._dynamo.config
        limits.recompile_limit = max(limits.recompile_limit, _PROGRAMS_PER_KIND * kinds)
        for block in self.blocks:
            block.compile(fullgraph=True)

    def hidden(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """Final normalised hidden states [B, T, d_model] of packed rows.

        segments: int [B, T] document numbers, non-decreasing along a row; None: one document.

        Raises:
            ValueError: the rows are longer than a mixer allows.
        """
        self.check_length(tokens.shape[1], "the length of a row")
        if segments is not None and not self.compiled and _one_document_on_cpu(segments):
            segments = None  # masks would be all ones; compiled, it would be a second program
        info = SequenceInfo.of(tokens, segments, kernels=self.kernels)
        for module in self.modules():
            if hasattr(module, "prepare"):
                module.prepare(info)
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            x, _ = block(x, info.in_block(number))
        return self.norm(x)

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """Logits [B, T, vocab_size]; arguments as `hidden`."""
        return self.head(self.hidden(tokens, segments))

    def decode(
        self, tokens: Tensor, cache: Cache | None = None, segments: Tensor | None = None
    ) -> tuple[Tensor, Cache]:
        """Logits of the last token [B, vocab_size], and the cache after it.

        Feeding a text in any pieces gives what feeding it at once gives.

        Args:
            tokens: int [B, T], T >= 1, what follows the tokens that `cache` has seen.
            segments: document numbers; None: everything continues the cache's document. Padding
                on the left is a document of its own with a lower number.

        Raises:
            ValueError: no tokens; a document longer than a mixer allows; or random features were
                drawn anew since the cache was filled.
        """
        if tokens.shape[1] == 0:
            raise ValueError("decode needs at least one token; an empty text starts with BOS")
        if segments is None:
            start = tokens.new_zeros(len(tokens)) if cache is None else cache.segment
            segments = start[:, None].expand(tokens.shape)
        draws = tuple(part.current_draw() for part in self._redrawn)
        if cache is not None and cache.draws != draws:
            raise ValueError(
                f"the cache was filled with other random features (draws {cache.draws}) than the "
                f"model has now ({draws}), and its states mean nothing to them: fill a new cache"
            )
        known = (None, None) if cache is None else (cache.segment, cache.next_position)
        info = SequenceInfo.of(tokens, segments, *known, kernels=self.kernels)
        if self.max_length is not None:
            self.check_length(int(info.positions.max()) + 1, "the length of a document")
        states = [None] * len(self.blocks) if cache is None else cache.states
        x = self.embedding(tokens)
        kept = []
        for block, state in zip(self.blocks, states, strict=True):
            x, state = block(x, info, state, keep_state=True)
            kept.append(state)
        logits = self.head(self.norm(x[:, -1]))
        cache = Cache(tuple(kept), *advance(segments, info.positions), draws)
        return logits, cache.compact()

    def redraw(self, steps: int) -> None:
        """Draws random features for the training step after `steps` optimizer steps, where due.

        A pure function of the settings and `steps`; what is not trained keeps its features.
        """
        for part in self._redrawn:
            part.redraw(steps)

    def forget_draws(self) -> None:
        """After loading the weights of another run: see `Favor.forget_draw`."""
        for part in self._redrawn:
            part.forget_draw()

    def set_rope_base(self, base: float | None) -> None:
        """Sets the base of the rotary angles of softmax attention to the whole document.

        Mixers with a window keep theirs: the distances that they see do not grow with the rows.

        Args:
            base: None: that of the settings which the model was built with.

        Raises:
            ValueError: no mixer of the model has such a base.
        """
        used = used_names(self._built_with.layers)
        turned = {
            name: mixer
            for name, mixer in self._built_with.mixers.items()
            if name in used
            and mixer.kind == "softmax"
            and mixer.rope_base is not None
            and mixer.window is None
        }
        if base is not None and not turned:
            raise ValueError(
                f"rope_base={base:g} has no mixer to be of: no layer is softmax attention to the "
                "whole document with rotary positions; leave it out"
            )
        given = {} if base is None else {"rope_base": base}
        mixers = {name: mixer.model_copy(update=given) for name, mixer in turned.items()}
        self.settings = self._built_with.model_copy(
            update={"mixers": self._built_with.mixers | mixers}
        )
        for module in self.blocks.modules():
            if isinstance(module, SoftmaxMixer) and module.mask.window is None:
                module.set_rope_base(base)

    def check_length(self, length: int, name: str) -> None:
        """Raises ValueError where `name`, a number of tokens, is more than a mixer allows."""
        if self.max_length is not None and length > self.max_length:
            raise ValueError(
                f"{name} ({length:,} tokens) is more than max_length={self.max_length:,} of "
                "feature_map=cosformer, up to which its weights are positive; give a higher "
                "max_length when training, or fewer tokens"
            )

    def _apply(self, fn, recurse=True):
        # `to_empty` and moves from the meta device replace parameters one by one: tie them again.
        super()._apply(fn, recurse)
        if self.settings.tie_embeddings:
            self.head.weight = self.embedding.weight
        return self

    @torch.no_grad()
    def init_weights(self) -> None:
        """(Re-)initialises every parameter, also after `to_empty()` on another device.

        `model.init` names the scheme: see `ModelSettings`.
        """
        std = self.settings.init_std
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=self.settings.embedding_std)
        for block in self.blocks:
            for output in (*block.mixer.residual_outputs(), block.ffn.down):
                if self.settings.init == "zero_residual":
                    nn.init.zeros_(output.weight)
                else:
                    nn.init.normal_(output.weight, std=std / math.sqrt(2 * len(self.blocks)))
        for module in self.modules():
            if hasattr(module, "init_weights") and module is not self:
                module.init_weights()
        self._read_what_is_recalled()
        assert not self.settings.tie_embeddings or self.head.weight is self.embedding.weight

    def _read_what_is_recalled(self) -> None:
        """Lets the head predict the token that the last layer with `recall_init` looks up.

        One layer only: what a layer below writes would change what this one compares. A tied head
        reads the current token, and no layer writes for it.
        """
        mixers = [module for module in self.blocks.modules() if isinstance(module, SoftmaxMixer)]
        mixers = [mixer for mixer in mixers if mixer.recall_init]
        if mixers and not self.settings.tie_embeddings:
            rows = self.embedding.weight @ mixers[-1].write_recalled().T
            # A hidden state has d_model values of size 1: aligned with a row, it gives the logit.
            std = _RECALL_LOGIT / self.settings.d_model
            self.head.weight.add_(rows * (std / rows.std()))

    def num_parameters(self) -> int:
        """Number of trained values; a tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def flops_per_token(self, length: int) -> float:
        """Forward floating-point operations per token of rows of `length` tokens.

        Two per multiply-add. The embedding is a lookup and costs none; the head counts once, tied
        or not.
        """
        total = 2 * self.head.weight.numel()
        for block in self.blocks:
            ffn = sum(p.numel() for p in block.ffn.parameters())
            total += block.mixer.flops_per_token(length) + 2 * ffn
        return total


def _one_document_on_cpu(segments: Tensor) -> bool:
    """Whether every row is one document. Reads the tensor's values: a GPU would have to wait."""
    return segments.device.type == "cpu" and bool((segments[:, :1] == segments[:, -1:]).all())
