"""The one base of every error that a user can mend: its message says what is wrong, where, and what to do."""


class OrderproofError(Exception):
    """Shown as one message without a traceback; a subclass per module tells where it comes from."""
