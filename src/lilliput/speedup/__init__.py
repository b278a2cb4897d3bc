"""From masks to smaller layers: find channels that belong together, and cut them out exactly."""
