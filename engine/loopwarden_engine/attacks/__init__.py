"""Attacks on the operating-system wall, as data, and the worker that carries them out behind chosen walls.

`loopwarden doctor --matrix` and the tests run them, to see what each wall stops on this machine. A worker of a run
never imports this package. What is executed is the catalogue in these files and nothing else: a request names an
attack, and no text that came over a channel is ever run.
"""
