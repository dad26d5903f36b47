-- One settlement: a run ends or returns its job to waiting, and its fail job and follow-ups are enqueued.
--
-- storage/redis/codec/settlements.py packs settlements and unpacks answers.
--
-- settlement  I8 fence, B kind, B has, I8 at, I2 number of follow-ups, then the sections of `has`
-- kind        1 complete, 2 fail, 3 cancelled, 4 retry, 5 timeout, 6 stall, 7 release, 8 hand_off,
--             9 a release that parks the job
-- has         1 breaks a limit, 2 `at` is a time in ms (else a delay), 4 + retention, 8 + error, 16 + result,
--             32 a release with a time, 64 ends in a fail queue, 128 + cost as I8, in thousandths of a start
-- follow-ups  three arguments each, after all settlements: the index of its queue in KEYS, the id, the request
--             (storage/redis/lua/include/accept.lua)
-- answer      B status, I8 revision
-- status      STATUS_... below; SETTLE_STATUSES in storage/redis/codec/settlements.py has the same order

-- @include accept
-- @include outcomes

local STATUS_DONE, STATUS_RETURNED, STATUS_HANDED_OFF = 1, 2, 3
local STATUS_CANCELLED, STATUS_LOST, STATUS_REFUSED = 4, 5, 6
local RETURN_CAUSES = {[4] = 'error', [5] = 'timeout', [6] = 'stall'}
local KIND_RELEASE, KIND_HAND_OFF, KIND_PARK = 7, 8, 9

local function parse_settlement(text)
  local fence, kind, has, time, follows, at = unpack_from('>I8BBI8I2', text)
  local settlement = {
    fence = fence, kind = kind, time = time, follow_up_count = follows, breaks_limit = band(has, 1) ~= 0,
    absolute = band(has, 2) ~= 0, timed = kind ~= KIND_RELEASE or band(has, 32) ~= 0, in_fail_queue = band(has, 64) ~= 0,
  }
  if band(has, 128) ~= 0 then settlement.cost, at = unpack_from('>I8', text, at) end
  if band(has, 4) ~= 0 then settlement.retention, at = read_sized(text, at) end
  if band(has, 8) ~= 0 then settlement.error, at = read_sized(text, at) end
  if band(has, 16) ~= 0 then settlement.result, at = read_sized(text, at) end
  return settlement
end

-- Return the status of a settlement whose run is not active. A repeated settlement gets the status of the first one,
-- as long as the outcome with its fence is kept.
local function repeated_status(queue, id, settlement)
  local ended = settlement.fence > 0 and read_outcome(queue, id)
  if not ended or ended.fence ~= settlement.fence then return STATUS_LOST end
  if settlement.kind <= 3 then return ended.kind == settlement.kind and STATUS_DONE or STATUS_LOST end
  return ended.kind == 3 and STATUS_CANCELLED or STATUS_LOST
end

-- origin    I2 + queue, I2 + id, I8 revision, fence, enqueued_at, I4 attempts, retries, stalls, timeouts, I8 run_at,
--           I4 + attributes, error
local function encode_origin(name, job, error)
  return pack('>I2', #name) .. name .. pack('>I2', #job.id) .. job.id
    .. pack('>I8I8I8I4I4I4I4I8', job.revision, job.fence, job.enqueued_at, job.attempts, job.retries, job.stalls,
      job.timeouts, job.run_at) .. sized(split_data(job.data).attributes or '') .. error
end

local function enqueue_fail_job(queue, target, name, job, error)
  local number = next_number(target)
  local payload = split_data(whole_data(queue, job.data, 'job', job.id)).payload
  local failed = new_job({id = string.format('%016x', number), priority = 0, run_at = target.now,
    data = stored_data(target, join_data({by_reference = 0, payload = payload}), 1)}, target.now, number)
  failed.origin = encode_origin(name, job, error)
  add_to_order(target, failed, true)
  log_change(target, 'queued', failed.id, encode_head(failed))
end

-- End a run. A failure has a fail job if the setting fail_handler is set. `fail_queue` has the name of the queue and a
-- function that opens its fail queue; `enqueue_follow_ups` enqueues the follow-ups of this settlement.
local function end_run(queue, job, settlement, fail_queue, enqueue_follow_ups)
  end_job(queue, job, settlement)
  if settlement.kind == 2 and queue.fail_handler and not settlement.in_fail_queue then
    enqueue_fail_job(queue, fail_queue.open(), fail_queue.name, job, settlement.error)
  end
  if settlement.follow_up_count > 0 then enqueue_follow_ups() end
end

local function hand_off(queue, job)
  local key = key_of(job.data)
  if key then limits.plan_run(queue, key, job.id, false) end
  plan(queue, 'set', 'held:' .. job.lease, job.id, false)
  plan(queue, 'set', 'away', job.id, true)
  job.handed_off = true
  set_field(queue, 'active', job.id, encode_job(job))
  log_change(queue, 'handed_off', job.id, encode_head(job))
  if queue.max_active then queue.work_changed = true end
  return STATUS_HANDED_OFF, job.revision
end

local function return_run(queue, job, settlement)
  if job.handed_off then
    if settlement.kind == KIND_HAND_OFF then return STATUS_HANDED_OFF, job.revision end
    return STATUS_REFUSED, 0
  end
  if settlement.kind == KIND_HAND_OFF and not job.cancel_requested then return hand_off(queue, job) end
  local run_at
  if settlement.timed then run_at = settlement.absolute and settlement.time or queue.now + settlement.time end
  local parks = settlement.kind == KIND_PARK
  local ended = return_job(queue, job, RETURN_CAUSES[settlement.kind], run_at, settlement.error, parks) == 'cancelled'
  return ended and STATUS_CANCELLED or STATUS_RETURNED, 0
end

-- Apply one settlement. Return its status and revision.
local function settle_run(queue, id, settlement, fail_queue, enqueue_follow_ups)
  local text = read_field(queue, 'active', id)
  local job = text and parse_job(id, text)
  if not job or job.fence ~= settlement.fence then return repeated_status(queue, id, settlement), 0 end
  if settlement.breaks_limit then return STATUS_REFUSED, 0 end
  if settlement.cost and not job.handed_off then limits.charge_cost(queue, key_of(job.data), settlement.cost) end
  if settlement.kind > 3 then return return_run(queue, job, settlement) end
  end_run(queue, job, settlement, fail_queue, enqueue_follow_ups)
  return STATUS_DONE, 0
end

-- Apply a packed settlement; its follow-ups begin at ARGV[then_at]. Return the packed answer, and the place in ARGV after
-- its follow-ups.
local function settle_packed(queue, id, text, fail_queue, manual, then_at)
  local settlement = parse_settlement(text)
  local next_at = then_at + 3 * settlement.follow_up_count
  return pack('>BI8', settle_run(queue, id, settlement, fail_queue, function()
    for n = then_at, next_at - 1, 3 do
      local target = open_queue(KEYS[tonumber(ARGV[n])], manual)
      accept(target, parse_request(ARGV[n + 1], ARGV[n + 2], target.now))
    end
  end)), next_at
end
