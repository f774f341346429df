"""Stores: where journals, queues, budgets and schedules rest. One protocol, kept by SQLite, Postgres and memory."""
