"""All drawings, as SVG from plain data: of the report's page, and as files of their own."""
