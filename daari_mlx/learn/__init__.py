"""Learning while it works: finished answers → a graph that drafts for the next ones.

In come the tokens of answers and the states that verifying them showed for nothing; out go snapshots of a graph for
drafters, and, where a path is given, a log of answers and the graph that they are folded into.
"""
