"""Front ends: what a user brings becomes a graph."""
