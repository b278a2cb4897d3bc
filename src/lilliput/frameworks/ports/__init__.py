"""What the engine asks of a framework, in small parts; ``Backend`` has all of them."""
