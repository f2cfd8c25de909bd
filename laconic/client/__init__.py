"""The client's side: what it computes from the model and its data."""
