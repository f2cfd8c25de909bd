"""How the model becomes bytes on its way to a client."""
