"""The page of the report: a template, its style and its script, combined into one file."""
