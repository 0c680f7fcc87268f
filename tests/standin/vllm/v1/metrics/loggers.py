"""The base of the loggers that are told each step."""


class StatLoggerBase:
    pass
