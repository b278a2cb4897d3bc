"""3. The engine, free of any framework."""
