"""The simulated step as what is minimised: placements, units, micro-batches and schedule together."""
