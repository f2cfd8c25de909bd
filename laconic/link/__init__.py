"""What crosses the network, and what each side remembers about what did not."""
