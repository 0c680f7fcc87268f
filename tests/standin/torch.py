"""What worker.py asks of torch beside the stand-in for vLLM."""

__version__ = "stand-in"


def get_num_threads() -> int:
    return 1
