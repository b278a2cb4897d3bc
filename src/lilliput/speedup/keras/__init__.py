"""Channel groups of Keras models, and cutting masked channels out of them."""
