"""2. Numerics, written once for all frameworks."""
