"""Validation of a training run: metrics over samples, when it is due, which was the best, and when to stop."""
