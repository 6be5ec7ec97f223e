"""Local search: whole plans are annealed."""
