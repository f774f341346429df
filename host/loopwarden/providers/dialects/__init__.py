"""The dialects: one module per agent program."""
