"""What worker.py asks of torch beside the stand-in for vLLM."""

__version__ = "stand-in"


threads = 2


def get_num_threads() -> int:
    return threads


def set_num_threads(count: int) -> None:
    global threads
    threads = count
