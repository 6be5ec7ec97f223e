"""One rank of a pipeline: what it runs, what it sends, how gradients meet."""
