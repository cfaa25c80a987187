"""Tokenizer, preparation, packed data sets, sampling order and the Lightning data module."""
