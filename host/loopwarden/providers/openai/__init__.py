"""The `openai` provider, in its parts: one answer from a chat-completions endpoint."""
