"""The `acp` provider, in its parts: any agent that speaks the Agent Client Protocol."""
