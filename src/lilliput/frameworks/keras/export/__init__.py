"""What export asks of Keras; see ``frameworks/exporting``."""
