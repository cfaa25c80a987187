"""Training: the Lightning module, optimizers, schedules, and everything kept around a run."""
