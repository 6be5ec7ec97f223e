"""Spreads a workload over a fixed pool so that the most loaded device is loaded least."""
