"""Slow, literal float64 transcriptions of the papers' algorithms. They share no code with the package."""
