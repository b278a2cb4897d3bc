"""Choices under a budget: from rules with alternatives to an ordinary config list."""
