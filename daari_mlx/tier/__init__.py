"""A cheap tier of a teacher, to draft for it: quantised, without the layers that its answers need least.

In come a teacher and prompts; out goes a folder with a smaller model, and a record of what it costs and how often it
agrees. ``make.make_tier`` is the way in.
"""
