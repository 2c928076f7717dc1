"""The one exception that stands for a mistake of the user."""


class UserError(Exception):
    """A wrong flag, file or value: the message is shown as one line, without a traceback, and the exit code is 2.

    The message names the flag or file, the value found, and what would be right.
    """
