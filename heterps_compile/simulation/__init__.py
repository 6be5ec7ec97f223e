"""``heterps-compile simulate``: a plan's step under every schedule, its tables, JSON and trace."""
