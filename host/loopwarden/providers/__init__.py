"""Backends that run agents. `command` runs any program; the other modules are what it stands on."""
