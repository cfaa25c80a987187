"""Hydra configuration: one folder of YAML per choice, and the typed schema of every key."""
