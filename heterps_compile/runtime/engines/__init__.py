"""Engines that start a run on other machines: ssh, schedulers of clusters."""
