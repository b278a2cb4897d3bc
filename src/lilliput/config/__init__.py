"""1. What the user asks: rules, files, dialects, selection."""
