"""The plan: request, decisions, estimates, and the file they are kept in."""
