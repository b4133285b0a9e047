"""A job over a file: rows → the same rows with the teacher's answers, in the same order, resumed wherever it stopped.

``asks`` makes a question of a row, ``openai`` of a line of OpenAI's batches; ``files`` reads and writes lines of JSON
and CSV, packed or not. ``plan`` looks at every row before any work, ``foretold`` says what is to be done. ``work``
keeps a batch engine busy, in the order of ``order`` and with as many rows at once as ``concurrency`` finds best.
``journal`` keeps every answer as it comes, in the ``folder`` of the job; ``output`` joins rows and answers in their
``shape``; ``run`` is the whole job, on one rank or several; ``rows`` is the same as a generator.
"""
