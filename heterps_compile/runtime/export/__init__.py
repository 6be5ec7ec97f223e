"""The weights of a checkpoint as a model that runs without this package."""
