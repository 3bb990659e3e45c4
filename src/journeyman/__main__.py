"""``python -m journeyman`` is the ``journeyman`` command."""

from journeyman.cli import main

if __name__ == "__main__":
    main()
