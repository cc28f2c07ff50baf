"""The one exception for mistakes that a user can mend."""


class UserError(Exception):
    """Bad input: one line that says what is wrong, where (file:line) and what to do.

    Commands print it without a traceback and end with exit code 2.
    """
