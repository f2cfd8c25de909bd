"""One round, the same in every engine: messages, client state, the server, aggregation, defenses."""
