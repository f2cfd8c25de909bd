"""One round, the same for every engine: messages, client states, server, aggregation, defenses."""
