"""The graph: tables ⇄ a folder, and the look-ups that a walk needs.

``graph.Graph`` holds the tables, ``sources`` walk them, ``arbiter`` says how likely each named token is, ``artifact``
writes and reads the folder and holds it against a teacher. Arrays in, arrays out; ``compile`` makes them.
"""
