"""Checkpoints of a run: their format, writing them, resuming from them."""
