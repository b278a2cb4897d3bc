"""What export asks of torch; see ``frameworks/exporting``."""
