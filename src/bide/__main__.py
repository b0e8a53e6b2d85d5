"""`python -m bide`."""

from bide.cli import main

if __name__ == "__main__":
    main()
