"""Tuning: spaces of configurations, methods that search them, which machine a trial goes to, and running all of it.

Left out: the command (``cli/tune.py``), the page of a search (``report/tuning_page.py``).
"""
