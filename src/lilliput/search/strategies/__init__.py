"""Ways to search: each takes a task and returns the best trial that keeps the budget."""
