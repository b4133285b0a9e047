"""The teacher: tokens → states and logits by one forward, exactly undone where it was wrong.

``load`` loads it with mlx-lm, ``tap`` reads its states, ``row`` runs it for one answer and owns the cache, ``judge``
chooses tokens, ``rewind`` takes rows back from every kind of cache; ``ragged`` is the cache of many answers.
``quirks`` knows what single architectures need, ``fingerprint`` which teacher this is, ``kept`` whether it has changed,
``ranks`` and ``sharding`` several processes.
"""
