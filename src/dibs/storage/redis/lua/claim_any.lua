-- Claim in several queues, up to a limit in all: the claim of a blocking claim over a group of queues, or of its caller.
--
-- KEYS[1]  key of the group (storage/redis/lua/include/groups.lua)
-- KEYS[2…] prefixes of the queues to claim in; none for the queues of the group that changed since its last claim, or all
--          queues of the group if none has changed
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  lease
-- ARGV[3]  limit
-- Returns  {1, prefix, reply of storage/redis/lua/claim.lua, prefix, reply, ...}. Only a changed queue, or one with waiting
--          jobs, has a reply. {0} if no queue has changed and the group has too many queues to look at all of them

-- @include claim_step
-- @include each_queue

-- The most queues in one call, so that other clients wait for at most some ms.
local MAX_QUEUES = 200

local group, limit = KEYS[1], tonumber(ARGV[3])

-- Return the prefixes to claim in, and true if they have changed; nil if there are too many.
local function chosen_prefixes()
  if #KEYS > 1 then
    local given = {unpack(KEYS, 2)}
    call('SREM', group .. ':woken', unpack(given))
    return given, false
  end
  local changed = call('SPOP', group .. ':woken', MAX_QUEUES)
  if #changed > 0 then return changed, true end
  if call('SCARD', group .. ':members') > MAX_QUEUES then return nil end
  return call('SMEMBERS', group .. ':members'), false
end

local function has_waiting_jobs(prefix)
  return call('EXISTS', prefix .. 'priorities', prefix .. 'key_priorities') > 0
end

local prefixes, changed = chosen_prefixes()
if not prefixes then return {0} end
local reply, left, first_error = {1}, limit, nil
for _, prefix in ipairs(prefixes) do
  if not changed and not has_waiting_jobs(prefix) then
    -- Most queues of a group have no jobs, and a claim would take ten times as long.
  elseif left == 0 then
    release_group(group, prefix)
  else
    local claims, claimed = pcall(claim_step, prefix, ARGV[1], ARGV[2], left)
    opened = {}
    if claims then
      reply[#reply + 1], reply[#reply + 2] = prefix, claimed
      left = left - #claimed[5] / 2
    else
      -- The jobs of the other queues are claimed already. The next claim of the group raises the error.
      first_error = first_error or claimed
      release_group(group, prefix)
    end
  end
end
if first_error and left == limit then return error_reply(first_error) end
-- Queues may have stayed in the set, and BLPOP has removed the element that released this claim.
if call('SCARD', group .. ':woken') > 0 then release_claim(group) end
return reply
