"""A job generated again in its pinned order, and compared with the outputs that it gave before."""
