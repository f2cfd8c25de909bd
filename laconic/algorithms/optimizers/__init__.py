"""Server optimizers: how the mean update changes the server's model."""
