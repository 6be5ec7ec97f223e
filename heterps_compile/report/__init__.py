"""Reports: plans printed for people."""
