"""The labs of the frameworks, each with the checks that make sense on its framework only."""
