"""One run: its config, its ledger, its checkpoints, its clients' states and its metrics."""
