"""How the mean update moves the server's model."""
