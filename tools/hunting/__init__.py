"""What ``tools/hunt.py`` draws, builds, compares and shrinks."""
