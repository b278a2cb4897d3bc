"""Files as small as possible: masks, shared weights and an entropy coder."""
