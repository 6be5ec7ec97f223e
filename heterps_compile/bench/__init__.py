"""``heterps-compile bench``: the placement methods side by side on one model."""
