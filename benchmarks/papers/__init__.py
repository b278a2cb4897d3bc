"""One file per paper whose figures are repeated; see reproduce.py."""

PAPERS = ("han2015",)
