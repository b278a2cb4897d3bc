"""All drawings, as SVG from plain data: for the report's page, and as separate files."""
