"""Machines that are taken away: how long they live, what a run on them takes and costs, and when to leave them."""
