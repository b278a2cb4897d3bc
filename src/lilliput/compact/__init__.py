"""Files as small as information allows: masks, shared weights and an entropy coder."""
