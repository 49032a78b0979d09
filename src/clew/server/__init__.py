"""The server: one node of the engine behind one port, for workers, clients, people and operators."""
