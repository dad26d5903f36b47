"""All verbs of a storage whose jobs are in the memory of the process. Memory and file storage build on it.

- `index.py` and `queue_index.py`: the jobs of one storage, and those of one queue
- `orders.py`, `key_lines.py`: what a queue keeps in order, such as its due jobs, and the due jobs of each key
- `enqueueing.py`, `claiming.py`, `settling.py`, `by_id.py`, `whole_queue.py`, `reading.py`: the verbs, as
  plain functions that change an Index; dibs.model.transitions decides the changes of an id
- `storage.py`: the base class that a storage completes with its lock and its disk, and the async verbs, which
  check their arguments and call these functions
- `waiters.py`: the pending calls of `wait`, and their wake-ups
"""
