"""The job engine of a host: runs that are submitted to a store, and driven by whichever host has a free place."""
