"""The soak: mixed load for an hour, with kills every few seconds."""
