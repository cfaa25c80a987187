"""The network (embeddings, blocks, mixers, cache) and its training module."""
