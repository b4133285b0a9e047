"""From files to token sequences: JSONL, folders or stdin → prompts and answers as tokens.

``data`` reads, ``rows`` judges one row, ``prefixes`` finds what sequences share. In comes a path and a tokenizer; out
come sequences, and what was wrong with bad rows.
"""
