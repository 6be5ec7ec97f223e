"""``heterps-compile diff``: what changed from one plan to another, as data, sentences and formats."""
