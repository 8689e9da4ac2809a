"""`python -m kvward` is the command line."""

from kvward.cli.main import main

if __name__ == "__main__":
    main()
