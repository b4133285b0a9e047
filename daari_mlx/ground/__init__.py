"""What every wing may use, and which uses none of them.

Errors, progress bars, files that are written whole, locks, the fast BLAS, array types, readable token texts, intervals;
and ``accept``, the rule of which draft tokens are kept, on integers only.
"""
