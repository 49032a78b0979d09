"""The insurance claims of `make demo`; start reading in ``workflows.py``."""
