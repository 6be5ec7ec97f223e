"""Clusters: device types, their prices, and the pools they form."""
