-- Change the fields that a patch names: all of them, or none (docs/explanation/contract.md, amend).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  id
-- ARGV[3]  the most bytes that attributes may have
-- ARGV[4…] name, value, name, value, ...; names are payload, priority, run_at, delay, retention, attributes, lease
-- Returns  amended, active, not_found, or 'large BYTES' if the attributes would exceed ARGV[3]

-- @include accept
-- @include attributes
-- @include commit

local queue, id, patch, patch_size = open_queue(KEYS[1], ARGV[1]), ARGV[2], {}, 0
for i = 4, #ARGV, 2 do patch[ARGV[i]], patch_size = ARGV[i + 1], patch_size + 1 end
local waiting, active = read_field(queue, 'waiting', id), read_field(queue, 'active', id)
local outcome = live_outcome(queue, id)
local attributes_size = 0

-- Return attributes (nil for none) with those of the patch merged into them.
local function amend_attributes(attributes)
  if not patch.attributes then return attributes end
  local merged = merge(attributes or '', patch.attributes)
  attributes_size = math.max(attributes_size, size_of(merged))
  return merged ~= '' and merged or nil
end

-- Return the JSON of overrides with `lease`, in ms, as their lease. The other fields keep their bytes: a JSON decoder
-- of Lua would write a float without a fraction as a whole number. In a text, a quote is escaped, so that only the
-- field matches.
local function replace_lease(overrides, lease)
  local replaced, count = string.gsub(overrides, '"lease":%d+', '"lease":' .. lease)
  if count > 0 then return replaced end
  return '{"lease":' .. lease .. (overrides == '{}' and '' or ',') .. sub(overrides, 2)
end

local function amend_data(owner)
  local parts = split_data(owner.data)
  parts.attributes = amend_attributes(parts.attributes)
  parts.retention = patch.retention or parts.retention
  if patch.payload then parts.payload, parts.by_reference = patch.payload, 0 end
  if patch.lease then parts.overrides = replace_lease(parts.overrides or '{}', patch.lease) end
  owner.data = patch.payload and stored_data(queue, join_data(parts), 1) or join_data(parts)
end

local function amend_job(job)
  local before = place_of(job)
  amend_data(job)
  if not waiting then
    set_field(queue, 'active', id, encode_job(job))
    return
  end
  job.priority = tonumber(patch.priority or job.priority)
  job.run_at = tonumber(patch.run_at or (patch.delay and queue.now + tonumber(patch.delay)) or job.run_at)
  update_order(queue, job, before)
end

-- The expiry of an outcome counts from now if the patch has a retention for its kind.
local function amend_expiry()
  local ages = {string.match(patch.retention, '^([^,]*),([^,]*),([^,]*),([^,]*)$')}
  local age = ages[outcome.kind]
  if age ~= '' then outcome.expires_at = age ~= '*' and queue.now + tonumber(age) or nil end
end

-- Without a current, attributes go into the outcome: into its data if it keeps data.
local function amend_outcome_attributes()
  if not outcome.data then
    outcome.attributes = amend_attributes(outcome.attributes)
    return
  end
  local parts = split_data(outcome.data)
  parts.attributes = amend_attributes(parts.attributes)
  outcome.data = join_data(parts)
end

local function amend_outcome()
  if patch.retention then amend_expiry() end
  if patch.attributes and not (waiting or active) then amend_outcome_attributes() end
  local head = sub(expand_outcome(queue, id, read_field(queue, 'outcomes', id)), 18, outcome.head_end)
  store_outcome(queue, id, outcome.kind, pack_outcome(head, outcome))
end

if not waiting and not active then
  local of_outcome = (patch.retention and 1 or 0) + (patch.attributes and 1 or 0)
  if patch_size == 0 or patch_size ~= of_outcome or not outcome then return 'not_found' end
elseif active and (patch.payload or patch.priority or patch.run_at or patch.delay or patch.lease) then
  return 'active'
end
local job = (waiting or active) and parse_job(id, waiting or active)
local successor = active and read_successor(queue, id)
if job then amend_job(job) end
if successor and successor.creates then
  amend_data(successor)
  set_field(queue, 'successors', id, encode_successor(successor))
end
if outcome and (patch.retention or not job) then amend_outcome() end
if attributes_size > tonumber(ARGV[3]) then return 'large ' .. attributes_size end
log_change(queue, 'amended', id, job and encode_head(job))
-- A full server accepts a patch that adds no data: a waiter lengthens the retention of its job.
commit(not patch.payload and not patch.attributes)
return 'amended'
