"""The theorems of the papers: allowed step sizes, bounds, and rounds to a given error. Imports no torch."""
