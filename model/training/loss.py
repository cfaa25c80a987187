"""Cross-entropy from hidden states in chunks of tokens: logits of the whole batch never exist.

The gradient is formed beside the loss, chunk by chunk, so the logits are computed once; the
normaliser (the number of targets in the whole optimizer step) is known beforehand. torch's
`F.linear_cross_entropy` does not offer the z-loss and is missing before torch 2.13.
"""

import torch
from torch import Tensor

from kernels.derivatives import refuse_second_derivative

IGNORED = -100


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int, z_loss: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of next-token prediction, in nats.

    Args:
        hidden: [N, D] final hidden states.
        weight: [V, D] the output head.
        labels: int64 [N]; -100 is ignored.
        chunk: tokens whose logits exist at a time.
        z_loss: weight of the penalty sum(logsumexp(logits)^2) (Chowdhery et al., 2022, PaLM).

    Returns:
        (what to minimise: cross-entropy plus z-loss; the cross-entropy alone, detached), both
        float32 sums over the targets.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        # Custom functions do not see autocast: cast as F.linear would be.
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    total, cross_entropy = _ChunkedCrossEntropy.apply(hidden, weight, labels, chunk, z_loss)
    return total, cross_entropy.detach()


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk, z_loss):
        needs_gradient = any(ctx.needs_input_grad[:2])
        d_hidden = torch.empty_like(hidden) if needs_gradient else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_gradient else None
        # Sums of many chunks: float64 costs nothing here and keeps the total exact.
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        cross_entropy = torch.zeros_like(total)
        for start in range(0, len(hidden), chunk):
            at = slice(start, start + chunk)
            kept = labels[at] != IGNORED
            target = labels[at].clamp(min=0)[:, None]
            logits = (hidden[at] @ weight.T).float()
            of_target = logits.gather(1, target)[:, 0]
            # One exponential serves the normaliser and the gradient, in place.
            highest = logits.amax(dim=-1, keepdim=True)
            weights = logits.sub_(highest).exp_()
            normalizer = weights.sum(dim=-1)
            log_z = normalizer.log() + highest[:, 0]
            losses = (log_z - of_target) * kept
            cross_entropy += losses.sum()
            total += losses.sum() + z_loss * (log_z.square() * kept).sum()
            if needs_gradient:
                slope = (1 + 2 * z_loss * log_z) * kept
                d_logits = weights.mul_((slope / normalizer)[:, None])
                d_logits.scatter_add_(1, target, -kept.to(d_logits.dtype)[:, None])
                d_logits = d_logits.to(hidden.dtype)
                torch.mm(d_logits, weight, out=d_hidden[at])
                d_weight += (d_logits.T @ hidden[at]).float()
        ctx.save_for_backward(d_hidden, d_weight)
        ctx.weight_dtype = weight.dtype
        return total.float(), cross_entropy.float()

    @staticmethod
    def backward(ctx, d_total, _):
        refuse_second_derivative("chunked_cross_entropy", ", or F.cross_entropy")
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * d_total, (d_weight * d_total).to(ctx.weight_dtype), None, None, None
