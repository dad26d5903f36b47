"""All verbs of a storage whose jobs are in the memory of the process. Memory and file storage build on it.

- `index.py` and `queue_index.py`: the jobs of one storage, and those of one queue
- `claim_order.py`, `key_lines.py`: the due jobs in the order of claims, and those of each key
- `start_clocks.py`, `kept_outcomes.py`: the clocks of rates, and the outcomes with their expiry
- `enqueueing.py`, `claiming.py`, `settling.py`, `by_id.py`, `whole_queue.py`, `reading.py`: the verbs, as
  plain functions that change an Index; dibs.model.transitions decides the changes of an id
- `storage.py`: the async verbs, which check their arguments and call these functions
- `session.py`: the base class that a storage completes with its lock and its disk
- `waiters.py`, `recent_ids.py`: the pending calls of `wait`, and their wake-ups
"""
