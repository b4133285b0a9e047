"""From rows to time: T(m), what a forward over m rows costs, and which draft length pays.

``probe`` measures T(m) here and keeps it, ``curves`` holds those that others published, ``length`` chooses a draft
length from a curve and a path's probabilities.
"""
