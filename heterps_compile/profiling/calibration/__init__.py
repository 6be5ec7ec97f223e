"""Calibration: a unit of this machine measured once, as an entry of a pool."""
