"""What a person sees: records → lines for a terminal, and pictures (``plots``).

In come records, graphs and rounds as other wings return them; out go text, colours and files with pictures. Nothing is
measured or decoded here. ``report`` prints results, ``annotate`` makes records of rounds.
"""
