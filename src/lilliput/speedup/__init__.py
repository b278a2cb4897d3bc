"""From masks to smaller layers: which channels belong together, and cutting them out exactly."""
