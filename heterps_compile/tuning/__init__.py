"""Tuning: spaces of configurations, methods that search them, and which machine a trial goes to.

Left out: starting trials. The caller asks for one, runs it, and tells what came of it.
"""
