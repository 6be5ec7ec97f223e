"""The command predict: what a step of a given plan takes, and its parts."""
