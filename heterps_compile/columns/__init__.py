"""Tables as lists of columns, and a renderer for every medium."""
