"""Bridges from other toolkits."""
