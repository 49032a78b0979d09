"""The deterministic simulation: nodes, workers and clients in one process, on virtual time, under seeded faults."""
