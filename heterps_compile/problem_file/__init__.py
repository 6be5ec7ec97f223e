"""Cost-only problems: layers with given times, a pool and a request, read from a file."""
