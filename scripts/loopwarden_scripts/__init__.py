"""Vetted loops that ship with Loopwarden, one package each, found by the entry points `loopwarden.scripts`."""
