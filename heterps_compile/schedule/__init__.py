"""Schedules: how micro-batches flow through the stages."""
