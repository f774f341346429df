"""`python -m loopwarden` is the command line."""

from loopwarden.cli.app import main

if __name__ == "__main__":
    main()
