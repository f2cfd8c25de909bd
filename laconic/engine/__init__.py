"""Who runs the clients, and how gradients are computed."""
