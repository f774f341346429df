"""The command line. `loopwarden.cli.app.main` is its entry point."""
