"""The GPU backend: Triton kernels of the additive recurrence."""
