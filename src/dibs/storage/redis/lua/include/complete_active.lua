-- Fast path of settle for the general form of a run, as of scheduled jobs: a plain completion, without parsing the job.
-- tests/storage/redis/lua/test_short_outcomes.py compares it with the general path (end_run).

-- @include outcomes

-- Return the bytes that all plain completions of a step share; false if they need the general path.
local function shared_completion(queue)
  local plain = queue.shared_completion
  if plain == nil then
    local retention = cached_retention(queue, 1, {}, {data = '\0'})
    local expires_at, kept = retention.age and queue.now + retention.age, retention.age ~= 0
    plain = not (kept and retention.keeps) and not queue.max_active and queue.log_results == 0 and {
      flags = expires_at and 1 or 1 + FOR_EVER,
      kept = kept,
      -- Data with these flags needs the general path: a retention, a key, or attributes that the outcome keeps.
      general = HAS_RETENTION + HAS_KEY + (kept and HAS_ATTRIBUTES or 0),
      times = pack('>I8I8', queue.now, expires_at or 0),
      score = expires_at and decimal(expires_at) or '+inf',
    }
    queue.shared_completion = plain
  end
  return plain
end

-- End a run as completed. Return false, without a change, if the settlement needs the general path. `settlement` is
-- packed; its `has` is 0, or 16 with a result.
local function complete_active(queue, id, settlement)
  local kind, has = string.byte(settlement, 9, 10)
  local run, plain = read_field(queue, 'active', id), shared_completion(queue)
  if kind ~= 1 or (has ~= 0 and has ~= 16) or sub(settlement, 19, 20) ~= '\0\0' then return false end
  if not run or not plain then return false end
  local fence, lease, head, data_flags = active_parts(run)
  if fence ~= sub(settlement, 1, 8) or read_field(queue, 'successors', id) then return false end
  if not data_flags or band(data_flags, plain.general) ~= 0 then return false end
  local result = plain.kept and has == 16
  set_field(queue, 'active', id, false)
  plan(queue, 'set', 'held:' .. lease, id, false)
  if plain.kept then
    local text = string.char(plain.flags + (result and HAS_RESULT or 0)) .. plain.times .. head
    store_outcome(queue, id, 1, result and text .. sub(settlement, 21) or text, plain.score)
  else
    forget_end(queue, id)
  end
  log_attempt(queue, 'completed', id, head)
  return true
end
