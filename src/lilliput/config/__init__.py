"""1. What the user requests: rules, files, selection."""
