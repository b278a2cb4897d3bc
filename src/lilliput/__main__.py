"""``python -m lilliput`` is the command ``lilliput``."""

from lilliput.cli import main

if __name__ == "__main__":
    main()
