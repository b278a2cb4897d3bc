"""The export interface for torch; see ``frameworks/exporting``."""
