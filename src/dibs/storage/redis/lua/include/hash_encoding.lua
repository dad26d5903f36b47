-- The encoding of the hash `waiting`. Redis keeps a hash of up to 512 short fields (`hash-max-listpack-entries`) as one
-- list, and searches it from its start for each field. So a hash that grows to LONG_HASH fields gets the field '' with
-- PADDING for a moment: Redis then keeps it as a hash table until it is empty. The empty text is the id of no job.
-- tests/storage/redis/lua/test_hash_encoding.py checks it.

-- A list of fewer fields is about as fast as a hash table, and takes a third of its memory.
local LONG_HASH = 64
-- Longer than `hash-max-listpack-value`, which is 64 by default.
local PADDING = '-----------------------------------------------------------------'
