"""Readers of training data: samples by their number, whatever they are stored in."""
