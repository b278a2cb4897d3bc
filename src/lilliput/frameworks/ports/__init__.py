"""The framework interface of the engine, in small parts; ``Backend`` combines them."""
