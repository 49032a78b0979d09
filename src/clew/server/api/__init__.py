"""The HTTP API: JSON under ``/api/v1``, made from one table of operations."""
