"""Backends: what a plan becomes."""
