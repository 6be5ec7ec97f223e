"""Stages whose replicas are of several device types."""
