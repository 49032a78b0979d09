"""Partitions: real nodes, workers, clients and PostgreSQL, cut from each other while every call is written down."""
