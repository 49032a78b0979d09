"""The server shape: an engine behind one port, for workers, clients, scripts and people.

Owns: nothing of itself; `clew.server.app.create_app` makes the ASGI application, and `clew server start` and `clew dev`
are the usual ways in. The front ends need the extra ``clew[server]``.
"""
