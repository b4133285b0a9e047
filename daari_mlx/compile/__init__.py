"""From text and a teacher to a graph: read, collect states, place nodes, count.

In come sequences of tokens and a teacher; out goes a folder of states (``extract``, which resumes), and a calibrated
graph of it (``compiler.compile_graph``, ``update`` for more text). Only here are scikit-learn and long jobs.
"""
