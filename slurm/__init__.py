"""Batch scripts of SLURM, and the commands around them."""
