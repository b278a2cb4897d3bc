"""The framework interface of the exports, and its plain data types.

Each framework has a folder ``export`` with the same modules: ``simulation`` runs a model as it is simulated
and says where it is quantized, ``sums`` tells what its layers add up, ``trace`` turns it into a graph.
"""
