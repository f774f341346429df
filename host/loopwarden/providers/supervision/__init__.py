"""Processes that end what agents leave: the nursery, and the supervisors that it forks. Standard library only.

They are started with this folder as the only addition to Python's path, as the package `supervision`: importing
`loopwarden` would take a hundred times as long and as much memory.
"""
