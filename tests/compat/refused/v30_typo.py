"""A name that is spelled wrong."""

from nni.compression.pruning import L1NormPrunner  # not here

L1NormPrunner(None, [])
