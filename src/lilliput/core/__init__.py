"""3. The engine, independent of any framework."""
