"""The teacher: tokens → states and logits by one forward, exactly undone where it was wrong.

``load`` loads it with mlx-lm, ``tap`` reads its states, ``verify`` runs a block of rows, ``rewind`` takes rows back
from every kind of cache. ``quirks`` knows what single architectures need, ``fingerprint`` which teacher this is,
``ranks`` and ``sharding`` several processes.
"""
