-- Fast path of enqueue: a new job that is due now, without parsing the request. It takes a third of the time of
-- accept and writes the same bytes; tests/storage/redis/lua/test_claim_order.py compares the two.

-- @include claim_order

-- Return a function that enqueues new jobs of this priority without a key; false if all of them need the general path.
-- `flags` are the flags of their data. The function takes an id and the data after its flags. It returns the number of the
-- job, or nil if the id is known. The caller must prefetch `waiting` and `active` for the ids.
local function fast_enqueuer(queue, priority, flags)
  if queue.log_level == 'all' or not list_takes_more(queue, priority) then return false end
  local waiting, active, new_records = queue.fields.waiting, queue.fields.active, queue.new_records
  local before_seq, after_seq = pack('>Bh', LISTED, priority), pack('>I8', queue.now) .. flags
  local entries, listed_counts = queue.list_entries[priority] or {}, queue.listed_counts
  queue.list_entries[priority] = entries
  return function(id, data)
    if waiting[id] or active[id] then return nil end
    local number = next_number(queue)
    local seq, n = pack('>I8', number), #new_records
    local text = before_seq .. seq .. after_seq .. data
    waiting[id], new_records[n + 1], new_records[n + 2] = text, id, text
    entries[#entries + 1] = seq .. id
    listed_counts[priority], queue.work_changed = (listed_counts[priority] or 0) + 1, true
    return number
  end
end
