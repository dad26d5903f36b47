"""The contract over an index in memory: what the memory and the file storage share.

`index.py` holds the jobs of one place and the primitive puts, `queue_index.py` those of one queue; the
verbs are functions over it, one room for each kind of intention: enqueueing, claiming, settling, leasing,
keeping, reading. `face.py` is the async face that a storage inherits. What happens to an id is decided in
dibs.model.transitions, never here.
"""
