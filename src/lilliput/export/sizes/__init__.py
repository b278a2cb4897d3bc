"""Dynamic input sizes of a file, and checks at other sizes."""
