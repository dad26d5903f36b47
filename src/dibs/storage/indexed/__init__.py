"""The contract over an index in memory, shared by the memory storage and the file storage.

`index.py` holds the jobs of one storage and `queue_index.py` those of one queue. The verbs are functions of
an index, in one module for each kind: enqueueing, claiming, settling, by_id, whole_queue, reading.
`storage.py` has the async verbs that a storage inherits, and `session.py` opens it and runs a verb.
dibs.model.transitions decides the changes of an id.
"""
