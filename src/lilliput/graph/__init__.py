"""The model as data, and which of its channels belong together; no framework is imported here."""
