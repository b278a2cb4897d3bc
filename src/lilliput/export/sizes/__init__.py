"""Which sizes of its inputs a file leaves open, and whether it is right at others."""
