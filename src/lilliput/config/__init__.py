"""1. What the user asks: rules, files, selection."""
