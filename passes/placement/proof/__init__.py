"""The exact search: bounds, their proof, and the reason where nothing is feasible; README.md draws its four ideas."""
