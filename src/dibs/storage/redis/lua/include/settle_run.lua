-- One settlement, all of it: the end or return of a run, the fail job, the follow-ups.
--
-- settlement  I8 fence, B kind, B has, I8 at, I2 number of follow-ups, then the sections of `has`
-- kind        1 complete, 2 fail, 3 cancelled, 4 retry, 5 timeout, 6 stall, 7 release, 8 hand_off
-- has         1 breaks a limit, 2 at is a time (else a delay), 4 + retention, 8 + error, 16 + result,
--             32 handled, 64 ends in a fail queue
-- follow-ups  three words each, after all settlements: the number of its queue in KEYS, id, request
-- answer      B status, I8 revision, numbered as in codec.py

-- @include accept
-- @include quick

local DONE, RETURNED, HANDED_OFF, ENDED_CANCELLED, LOST, REFUSED = 1, 2, 3, 4, 5, 6
local CAUSES = {[4] = 'error', [5] = 'timeout', [6] = 'stall'}
local HAND_OFF = 8
local QUICK_DONE = pack('>BI8', DONE, 0)

local function parse_settlement(text)
  local fence, kind, has, time, follows, at = unpack_from('>I8BBI8I2', text)
  local how = {fence = fence, kind = kind, time = time, follows = follows, bad = band(has, 1) ~= 0}
  how.absolute, how.handled, how.shown = band(has, 2) ~= 0, band(has, 32) ~= 0, band(has, 64) ~= 0
  if band(has, 4) ~= 0 then how.retention, at = section(text, at) end
  if band(has, 8) ~= 0 then how.error, at = section(text, at) end
  if band(has, 16) ~= 0 then how.result, at = section(text, at) end
  return how
end

-- A repeat hears what the first one heard, while the outcome remembers the fence.
local function remembered(queue, id, how)
  local ended = how.fence > 0 and outcome(queue, id)
  if not ended or ended.fence ~= how.fence then return LOST end
  if how.kind <= 3 then return ended.kind == how.kind and DONE or LOST end
  return ended.kind == 3 and ENDED_CANCELLED or LOST
end

-- origin    I2 + queue, I2 + id, I8 revision, fence, enqueued_at, I4 attempts, retries, stalls, timeouts, error
local function origin_of(name, job, error)
  return pack('>I2', #name) .. name .. pack('>I2', #job.id) .. job.id
    .. pack('>I8I8I8I4I4I4I4', job.revision, job.fence, job.enqueued_at, job.attempts, job.retries, job.stalls,
      job.timeouts) .. error
end

local function fail_job(into, name, job, error)
  local _, _, _, payload = split(job.data)
  local number = draw(into)
  local failed = new_job({id = string.format('%016x', number), priority = 0, run_at = into.now,
    data = join(nil, nil, nil, payload)}, into.now, number)
  failed.origin = origin_of(name, job, error)
  line_up(into, failed, true)
  note(into, 'queued', failed.id, head_of(failed))
end

-- follow: function that enqueues the follow-ups of this settlement.
local function end_run(queue, job, how, fail, follow)
  finish(queue, job, how)
  if how.handled then fail_job(fail.open(), fail.name, job, how.error) end
  if how.follows > 0 then follow() end
end

local function hand_off(queue, job)
  put(queue, 'set', 'held:' .. job.lease, job.id, false)
  put(queue, 'set', 'away', job.id, true)
  job.away = true
  keep(queue, 'active', job.id, record(job))
  note(queue, 'handed_off', job.id, head_of(job))
  if queue.max_active then queue.worked = true end
  return HANDED_OFF, job.revision
end

local function return_run(queue, job, how)
  if job.away then
    if how.kind == HAND_OFF then return HANDED_OFF, job.revision end
    return REFUSED, 0
  end
  if how.kind == HAND_OFF and not job.asked then return hand_off(queue, job) end
  local run_at = how.absolute and how.time or queue.now + how.time
  local ended = give_back(queue, job, CAUSES[how.kind], run_at, how.error) == 'cancelled'
  return ended and ENDED_CANCELLED or RETURNED, 0
end

-- Returns status and revision.
local function settle_run(queue, id, how, fail, follow)
  local text = look(queue, 'active', id)
  local job = text and parse(id, text)
  if not job or job.fence ~= how.fence then return remembered(queue, id, how), 0 end
  if how.bad then return REFUSED, 0 end
  if how.kind > 3 then return return_run(queue, job, how) end
  end_run(queue, job, how, fail, follow)
  return DONE, 0
end

-- Settle all of ARGV from `at` on: I4-counted pairs of id and settlement, then follow-ups.
-- fail_base: the beginning of the fail queue's keys, '' where there is none.
local function settle_all(queue, name, fail_base, manual, count, at)
  local ids, answers = {}, {}
  for i = 1, count do ids[i] = ARGV[at + 2 * i - 2] end
  prefetch(queue, 'active', ids)
  if call('EXISTS', queue.base .. 'successors') == 1 then
    prefetch(queue, 'successors', ids)
  else
    queue.slots.successors = setmetatable({}, {__index = function() return false end})
  end
  local then_at = at + 2 * count
  local fail = {name = name, open = function() return open(fail_base, manual) end}
  for i = 1, count do
    local id, text = ids[i], ARGV[at + 2 * i - 1]
    if quick_complete(queue, id, text) then
      answers[i] = QUICK_DONE
    else
      local how, first = parse_settlement(text), then_at
      then_at = then_at + 3 * how.follows
      answers[i] = pack('>BI8', settle_run(queue, id, how, fail, function()
        for word = first, first + 3 * how.follows - 1, 3 do
          local into = open(KEYS[tonumber(ARGV[word])], manual)
          accept(into, parse_request(ARGV[word + 1], ARGV[word + 2], into.now))
        end
      end))
    end
  end
  return table.concat(answers)
end
