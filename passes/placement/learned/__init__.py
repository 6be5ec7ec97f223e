"""Placement by a learned policy: the network, what it sees, and how it learns."""
