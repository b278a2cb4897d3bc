"""The page of the report: a template, its style and its script, put together into one file."""
