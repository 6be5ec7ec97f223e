"""Placement methods: one file, one method."""
