"""From files and messages to token ids: JSONL, folders or stdin → prompts and answers as tokens.

``template`` is the one way from messages to text and ids, with ``messages`` for the one form that they are brought
into; ``prompt`` takes prompts as public functions do. ``lines`` opens a file, ``rows`` judges one row, ``data`` reads
them all, ``identity`` says which are the same, ``prefixes`` finds what sequences share.
"""
