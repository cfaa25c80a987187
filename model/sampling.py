"""Choosing the next token, and decoding with the cache."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from model.network import LanguageModel


def next_token_probabilities(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None
) -> Tensor:
    """The distribution that the next token is drawn from.

    Args:
        logits: [B, V].
        temperature: 0 puts everything on the most likely token (the lowest id among equals).
        top_k: keep the k most likely tokens; None, 0 or k >= V keep all.
        top_p: keep the most likely tokens until their probabilities reach p, at least one; None, 0
            or 1 keep all.

    Returns:
        float32 [B, V], rows sum to 1.

    Raises:
        ValueError: an option outside its range.
    """
    if not 0 <= temperature < math.inf or (top_k or 0) < 0 or not 0 <= (top_p or 0) <= 1:
        raise ValueError(
            f"temperature={temperature}, top_k={top_k}, top_p={top_p}: temperature and top_k must "
            "be finite and at least 0, top_p between 0 and 1"
        )
    logits = logits.float()
    vocab_size = logits.shape[-1]
    if temperature == 0:
        top_k, temperature = 1, 1.0
    # Shifted first: a tiny temperature then gives -inf, never inf - inf; in float64, because
    # float32 rounds temperatures below 1e-45 to 0.
    logits = (logits - logits.max(dim=-1, keepdim=True).values).double() / temperature
    logits = logits.float()
    probabilities = logits.softmax(dim=-1)
    if top_k and top_k < vocab_size:
        order = probabilities.argsort(dim=-1, descending=True, stable=True)
        dropped = torch.zeros_like(probabilities, dtype=torch.bool)
        dropped.scatter_(-1, order[:, top_k:], True)
        probabilities = probabilities.masked_fill(dropped, 0)
    if top_p and top_p < 1:
        probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        dropped = torch.zeros_like(probabilities, dtype=torch.bool)
        dropped.scatter_(-1, order[:, 1:], before[:, 1:] >= top_p)
        probabilities = probabilities.masked_fill(dropped, 0)
    return probabilities / probabilities.sum(dim=-1, keepdim=True)


@torch.inference_mode()
def generate(
    model: LanguageModel,
    prompts: Tensor,
    max_new_tokens: int,
    *,
    eos_id: int,
    pad_id: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    segments: Tensor | None = None,
    prefill_chunk: int = 2048,
) -> Iterator[Tensor]:
    """Yields the next token of every row, [B], until all rows have ended or the limit is reached.

    The prompt is read in pieces of `prefill_chunk` tokens, then token by token: memory stays
    constant for linear mixers and windows, whatever the length.

    Args:
        prompts: int64 [B, T], T >= 1; an empty text is a single BOS.
        eos_id: ends a row; it is yielded once.
        pad_id: what rows yield after their end.
        segments: int [B, T]: shorter prompts are padded on the left, the padding being a document
            of its own with a lower number.

    Raises:
        ValueError: no tokens, or with the new ones more than a mixer allows.
    """
    if prompts.shape[1] == 0:
        raise ValueError("the prompt has no tokens: an empty text starts with BOS")
    if max_new_tokens <= 0:
        return
    model.check_length(prompts.shape[1] + max_new_tokens - 1, "prompt with max_new_tokens")
    cache = None
    for start in range(0, prompts.shape[1], prefill_chunk):
        at = slice(start, start + prefill_chunk)
        piece = None if segments is None else segments[:, at]
        logits, cache = model.decode(prompts[:, at], cache, piece)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=prompts.device)
    for count in range(max_new_tokens):
        probabilities = next_token_probabilities(logits, temperature, top_k, top_p)
        token = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        token = torch.where(ended, pad_id, token)
        ended = ended | (token == eos_id)
        yield token
        if count + 1 == max_new_tokens or bool(ended.all()):
            return
        logits, cache = model.decode(token[:, None], cache)
