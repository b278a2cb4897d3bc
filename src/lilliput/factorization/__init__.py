"""Layers that become products of smaller ones."""
