"""The command line: words → one call each.

In come the words that somebody typed; out go a call that a notebook could make too, lines on stdout, notes on stderr
and an exit status. Here, at the door, names become things: a graph, a teacher, a drafter, a file of rows; what lies
below is only handed things. ``start.main`` is the console script; nobody else imports this wing.
"""
