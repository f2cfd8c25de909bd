"""What a client computes from the model and its data, and what the server does with it."""
