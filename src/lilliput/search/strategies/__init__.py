"""Search strategies: each takes a task and returns the best trial that meets the budget."""
