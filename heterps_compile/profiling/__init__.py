"""Measuring the layers of a model, and how they scale, on the hardware at hand."""
