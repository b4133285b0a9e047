"""A job over a file: rows → the same rows with the teacher's answers, in the same order, resumed wherever it stopped.

``asks`` makes a question of a row, ``openai`` of a line of OpenAI's batches; ``files`` reads and writes lines of JSON
and CSV, packed or not. ``plan`` looks at every row before any work. ``work`` keeps a batch engine busy, in the order of
``order`` and with as many rows at once as ``concurrency`` finds best. ``journal`` keeps every answer as it comes,
``output`` joins rows and answers, ``run`` is the whole job, on one rank or several; ``rows`` the same as a generator.
"""
