-- Change the fields that a patch names: all of them, or none (docs/explanation/contract.md, amend).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  id
-- ARGV[3]  the most bytes that attributes may have
-- ARGV[4…] name, value, name, value, ...; names are payload, priority, run_at, delay, retention, attributes
-- Returns  amended, active, not_found, or 'large BYTES' if the attributes would exceed ARGV[3]

-- @include accept
-- @include attributes
-- @include commit

local queue, id, patch, patch_size = open_queue(KEYS[1], ARGV[1]), ARGV[2], {}, 0
for i = 4, #ARGV, 2 do patch[ARGV[i]], patch_size = ARGV[i + 1], patch_size + 1 end
local waiting, active = read_field(queue, 'waiting', id), read_field(queue, 'active', id)
local outcome = live_outcome(queue, id)
local attributes_size = 0

local function amend_data(owner)
  local attributes, overrides, retention, payload = split_data(owner.data)
  if patch.attributes then
    attributes = merge(attributes or '', patch.attributes)
    attributes_size = math.max(attributes_size, size_of(attributes))
    if attributes == '' then attributes = nil end
  end
  owner.data = join_data(attributes, overrides, patch.retention or retention, patch.payload or payload)
end

local function amend_job(job)
  local priority, run_at = job.priority, job.run_at
  amend_data(job)
  if not waiting then
    set_field(queue, 'active', id, encode_job(job))
    return
  end
  job.priority = tonumber(patch.priority or priority)
  job.run_at = tonumber(patch.run_at or (patch.delay and queue.now + tonumber(patch.delay)) or run_at)
  update_order(queue, job, priority, run_at)
end

local function amend_outcome()
  local ages = {string.match(patch.retention, '^([^,]*),([^,]*),([^,]*),([^,]*)$')}
  if ages[outcome.kind] == '' then return end
  local age = ages[outcome.kind]
  local expires_at = age ~= '*' and queue.now + tonumber(age) or nil
  local flags = band(outcome.outcome_flags, 255 - FOR_EVER) + (expires_at and 0 or FOR_EVER)
  local text = read_field(queue, 'outcomes', id)
  store_outcome(queue, id, outcome.kind, pack('>BI8I8', flags, outcome.ended_at, expires_at or 0) .. sub(text, 18),
    expires_at and decimal(expires_at) or '+inf')
end

if not waiting and not active then
  if patch_size ~= 1 or not patch.retention or not outcome then return 'not_found' end
elseif active and (patch.payload or patch.priority or patch.run_at or patch.delay) then
  return 'active'
end
local job = (waiting or active) and parse_job(id, waiting or active)
local successor = active and read_successor(queue, id)
if job then amend_job(job) end
if successor then
  amend_data(successor)
  set_field(queue, 'successors', id, encode_successor(successor))
end
if attributes_size > tonumber(ARGV[3]) then return 'large ' .. attributes_size end
if outcome and patch.retention then amend_outcome() end
log_change(queue, 'amended', id, job and encode_head(job))
commit()
return 'amended'
