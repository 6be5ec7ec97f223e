"""Passes: one file, one pass; each refines a draft."""
