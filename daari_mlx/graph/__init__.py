"""The graph: a labelled corpus → tables, a folder ⇄ tables, and the look-ups that a walk needs.

``build`` makes a ``Graph`` of nodes and a labelled corpus, ``calibrate`` and ``arbiter`` say how far its sources can be
trusted, ``sources`` walk it, ``artifact`` writes and reads its folder. Arrays in, arrays out: no model, no mlx-lm.
"""
