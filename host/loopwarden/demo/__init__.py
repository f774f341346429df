"""The demo: a small package with three failing tests, and a canned agent that repairs them. Needs no model."""
