"""Local search: a polish on fixed terms, climbed from many plans."""
