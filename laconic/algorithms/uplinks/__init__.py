"""How a client's vector becomes bytes, and what the client remembers about what it did not send."""
