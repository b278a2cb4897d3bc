"""Drawings of the report as inline SVG, coloured by the page's style: light, dark and on paper."""
