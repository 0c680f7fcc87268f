"""The base of every error that a user can fix: its message says what is wrong, where, and what to do."""


class OrderproofError(Exception):
    """Shown as a message without a traceback; each module has its own subclass."""
