"""What compression did, as data and as tables."""
