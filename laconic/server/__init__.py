"""The server's side: who takes part, how updates become a mean, how the mean moves the model."""
