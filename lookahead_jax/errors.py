"""The one error type for mistakes in what a caller passed in."""


class LookaheadError(ValueError):
    """Bad input: a single line that says what was expected and what came.

    The command line prints the line and exits with code 2. Anything else that escapes is a bug of
    this package and keeps its traceback.
    """
