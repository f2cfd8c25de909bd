"""Methods: what clients compute in a round, and how the server combines their answers."""
