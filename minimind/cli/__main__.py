"""``python -m minimind.cli`` is `minimind`."""

from minimind.cli.entry import main

if __name__ == "__main__":
    main()
