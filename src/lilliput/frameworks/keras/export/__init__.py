"""The export interface for Keras; see ``frameworks/exporting``."""
