"""What is not to be collected: programs that the tests of this folder run, or only read."""

collect_ignore_glob = ["refused/*.py"]
