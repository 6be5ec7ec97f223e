"""Runtimes: what runs a compiled folder."""
