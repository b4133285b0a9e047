"""From a context to a draft: who proposes tokens, and how far it pays.

``drafter`` has the one method of a drafter, the records that it takes and gives, and the drafter of a graph; beside it
prompt lookup, a cheaper model, and a graph and a model as a pair. In come the text and the teacher's state; out goes a
draft with its probabilities. No teacher is run here.
"""
