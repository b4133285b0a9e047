"""A graph ⇄ the Hugging Face Hub, and from a graph's name to the graph.

``find`` turns a name (a folder, ``user/name``) into a graph; ``publish`` sends and fetches one, ``scrub`` sees that
nothing of this machine goes along. The only wing that talks to the Hub about graphs.
"""
