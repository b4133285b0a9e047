"""Other programs' requests → answers over HTTP: OpenAI's and Anthropic's APIs on the batch engine.

``run.serve`` gets a teacher and a graph and answers until it is told to end. ``app`` has the routes; one file for each
API (``chat``, ``completions``, ``responses``, ``messages``) reads its fields and writes its events; ``worker`` is the
one thread that owns the model; ``parts`` makes text, reasoning and tool calls of tokens; ``caches`` keeps what
conversations have read; ``book`` counts.

Besides its API's own fields, every choice of an answer or of a streamed chunk has ``daari``::

    {"sources": [[source or null, text], ...], "tokens": 12, "forwards": 3, "tokens_per_forward": 4.0,
     "drafted": 14, "accepted": 9, "drafting_off": null or why, "alone": null or why it shares no forward}

``sources`` has a pair for each token of this chunk, in order: who drafted it (null: the teacher's own) and the text
that it showed, which joined is the chunk's text; a token that ends one piece and begins the next has a pair in both.
The other figures are of this answer so far. ``GET /daari/requests`` lists the newest requests, without
a word of what was said unless the server was started with ``--show-prompts``.
"""
