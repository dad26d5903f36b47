-- Claim in several queues, up to a limit in all: the claim of a blocking claim over a group of queues, or of its caller.
--
-- KEYS[1]  key of the group (storage/redis/lua/include/groups.lua)
-- KEYS[2…] prefixes of the queues to claim in; none for the queues of the group that changed since its last claim
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  lease
-- ARGV[3]  limit
-- Returns  {number of changed queues, prefix, reply of storage/redis/lua/claim.lua, prefix, reply, ...}. Of the queues in
--          KEYS, those without waiting jobs have no reply.

-- @include claim_step
-- @include groups

-- The most changed queues in one call, so that other clients wait for at most some ms.
local MAX_QUEUES = 200

local group, are_given = KEYS[1], #KEYS > 1
local prefixes = {unpack(KEYS, 2)}
if are_given then
  call('SREM', group .. ':woken', unpack(prefixes))
else
  prefixes = call('SPOP', group .. ':woken', MAX_QUEUES)
end

local function has_waiting_jobs(prefix)
  return call('EXISTS', prefix .. 'priorities', prefix .. 'key_priorities') > 0
end

local reply, left, first_error = {are_given and 0 or #prefixes}, tonumber(ARGV[3]), nil
for _, prefix in ipairs(prefixes) do
  if are_given and not has_waiting_jobs(prefix) then
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
if first_error and left == tonumber(ARGV[3]) then error(first_error, 0) end
-- Queues may have stayed in the set, and BLPOP has removed the element that released this claim.
if call('SCARD', group .. ':woken') > 0 and call('EXISTS', group .. ':parked') == 0 then
  call('RPUSH', group .. ':parked', '')
  call('PEXPIRE', group .. ':parked', GROUP_AGE)
end
return reply
