"""A picture of how long the documents of a data set are."""

from pathlib import Path

import numpy as np

from data.index import Index, SplitIndex

_BINS_PER_DOUBLING = 4
_BLOCK = 1 << 20


def draw_lengths(folder: Path, index: Index, path: Path) -> None:
    """Writes a PNG: share of the training documents, and of their tokens, over the length."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    documents, tokens = length_counts(folder, index.train)
    edges = 2.0 ** (np.arange(len(documents) + 1) / _BINS_PER_DOUBLING)
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(
        xscale="log", xlabel="tokens of a document, BOS and EOS included", ylabel="share (%)"
    )
    for counts, label in ((documents, "documents"), (tokens, "tokens in them")):
        axes.stairs(100 * counts / max(1, counts.sum()), edges, label=label, fill=True, alpha=0.5)
    used = np.flatnonzero(documents)
    if len(used):
        axes.set_xlim(edges[used[0]], edges[used[-1] + 1])
    axes.set_title(
        f"{index.train.documents:,} training documents, {index.train.tokens:,} tokens", fontsize=10
    )
    axes.legend()
    figure.savefig(path, dpi=120)


def length_counts(folder: Path, split: SplitIndex) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of documents, and of tokens in them, by length: int64 [bins] each.

    Bin i holds lengths from 2^(i/4) tokens to below 2^((i+1)/4).
    """
    starts = np.load(folder / split.offsets_file, mmap_mode="r")
    bins = _BINS_PER_DOUBLING * 63
    documents, tokens = np.zeros(bins, dtype=np.int64), np.zeros(bins, dtype=np.int64)
    for begin in range(0, len(starts), _BLOCK):
        ends = starts[begin + 1 : begin + _BLOCK + 1]
        if begin + _BLOCK >= len(starts):
            ends = np.append(ends, split.tokens)
        lengths = ends - starts[begin : begin + _BLOCK]
        places = np.floor(_BINS_PER_DOUBLING * np.log2(lengths)).astype(np.int64)
        documents += np.bincount(places, minlength=bins)
        np.add.at(tokens, places, lengths)
    return documents, tokens
