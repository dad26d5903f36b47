-- Change what a patch names, whole or not at all (contract 3, amend).
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2]  id
-- ARGV[3]  the most bytes that attributes may have
-- ARGV[4…] name and value by turns: payload, priority, run_at, delay, retention, attributes
-- Returns  amended, active, not_found, or 'large BYTES' when the attributes would grow too large

-- @include accept
-- @include attributes
-- @include commit

local queue, id, patch, asks = open(KEYS[1], ARGV[1]), ARGV[2], {}, 0
for i = 4, #ARGV, 2 do patch[ARGV[i]], asks = ARGV[i + 1], asks + 1 end
local waiting, active = look(queue, 'waiting', id), look(queue, 'active', id)
local ended = alive(queue, id)
local largest = 0

local function amend_data(part)
  local attributes, overrides, retention, payload = split(part.data)
  if patch.attributes then
    attributes = merge(attributes or '', patch.attributes)
    largest = math.max(largest, size_of(attributes))
    if attributes == '' then attributes = nil end
  end
  part.data = join(attributes, overrides, patch.retention or retention, patch.payload or payload)
end

local function amend_job(job)
  local priority, run_at = job.priority, job.run_at
  amend_data(job)
  if not waiting then
    keep(queue, 'active', id, record(job))
    return
  end
  job.priority = tonumber(patch.priority or priority)
  job.run_at = tonumber(patch.run_at or (patch.delay and queue.now + tonumber(patch.delay)) or run_at)
  stay_or_move(queue, job, priority, run_at)
end

local function amend_outcome()
  local words = {string.match(patch.retention, '^([^,]*),([^,]*),([^,]*),([^,]*)$')}
  if words[ended.kind] == '' then return end
  local age = words[ended.kind]
  local expires_at = age ~= '*' and queue.now + tonumber(age) or nil
  local flags = band(ended.outcome_flags, 255 - FOR_EVER) + (expires_at and 0 or FOR_EVER)
  local text = look(queue, 'outcomes', id)
  keep_outcome(queue, id, ended.kind, pack('>BI8I8', flags, ended.ended_at, expires_at or 0) .. sub(text, 18),
    expires_at and decimal(expires_at) or '+inf')
end

if not waiting and not active then
  if asks ~= 1 or not patch.retention or not ended then return 'not_found' end
elseif active and (patch.payload or patch.priority or patch.run_at or patch.delay) then
  return 'active'
end
local job = (waiting or active) and parse(id, waiting or active)
local blocked = active and successor(queue, id)
if job then amend_job(job) end
if blocked then
  amend_data(blocked)
  keep(queue, 'successors', id, successor_record(blocked))
end
if largest > tonumber(ARGV[3]) then return 'large ' .. largest end
if ended and patch.retention then amend_outcome() end
note(queue, 'amended', id, job and head_of(job) or ended and head_of(ended))
commit()
return 'amended'
