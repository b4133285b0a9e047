"""The one error type that users see: what was wrong, what was found, what to do."""


class DaariError(ValueError):
    """A mistake that the user can mend; its message says how. The CLI prints it without a traceback."""
