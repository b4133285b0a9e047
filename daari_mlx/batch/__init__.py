"""Many answers at once: requests → events, several tokens a row and round.

``generate.batch_generate`` answers a list of prompts; ``engine.BatchEngine`` is what it and servers stand on: requests
are added at any time, a step gives events, rows leave when they end or are cancelled. ``newcomers`` and ``prefixes``
read prompts between rounds; ``running`` has the rounds, in which ``lengths`` says how far rows draft, ``rows`` runs one
forward for all of them, and ``judging`` asks each row's own judge. ``alone`` answers what cannot share a batch. One
thread steps it.
"""
