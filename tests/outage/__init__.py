"""Trouble with a real PostgreSQL: answers lost, connections cut, the server stopped, paused, failed over, or full."""
