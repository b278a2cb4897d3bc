"""The model as data, and which of its channels belong together; imports no framework."""
