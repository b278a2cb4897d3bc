"""The framework interface of the exports, and its plain data types.

Each framework has a folder ``export`` with the same modules: ``simulation`` runs the simulated model
and records its quantizer placements, ``sums`` returns what its layers accumulate, ``trace`` turns it
into a graph.
"""
