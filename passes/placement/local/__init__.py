"""Local search: whole plans annealed; a polish on fixed terms, climbed from many plans."""
