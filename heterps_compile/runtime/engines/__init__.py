"""Engines that start a run on other machines: ssh, torchrun, schedulers of clusters."""
