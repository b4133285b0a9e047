"""The terminal chat: a person's lines → answers, and commands about them.

In come an engine and lines (typed or piped); out go answers on stdout and everything about them on stderr.
``loop.chat`` is the way in. ``session`` is a chat without a terminal, ``conversation`` what was said in it.
"""
