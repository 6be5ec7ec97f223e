"""Verification: the stages of a compiled model against the whole one, before anything is written."""
