"""Pieces that many programs want beside the engine; each module stands alone and is imported by its own name.

Owns: nothing itself. Never: imported by the rest of Clew. A module that needs another package names its extra.
"""
