-- The arithmetic of rates: a clock in µs decides about each start. src/dibs/model/rates.py has the same formulas.
--
-- Part of the functions of `limits` in storage/redis/lua/include/claim_order.lua.

-- Return the µs up to which a clock may be for a start that is allowed now.
local function latest_clock(rate, now)
  return now * 1000 + (rate.burst - 1) * rate.interval
end

-- Return the number of starts that a clock allows now.
function lines.starts_allowed(clock, rate, now)
  local begin, latest = math.max(clock, now * 1000), latest_clock(rate, now)
  return begin > latest and 0 or math.floor((latest - begin) / rate.interval) + 1
end

-- Return the clock after a number of starts now.
function lines.charged(clock, rate, now, starts)
  return math.max(clock, now * 1000) + starts * rate.interval
end

-- Return the earliest ms at which the clock allows a start; nil if it allows one now.
function lines.next_start(clock, rate, now)
  if clock <= latest_clock(rate, now) then return nil end
  return math.ceil((clock - (rate.burst - 1) * rate.interval) / 1000)
end

-- Return the clock of the queue.
function lines.queue_clock(queue)
  local clock = call('HGET', queue.prefix .. 'meta', 'clock')
  if clock and not tonumber(clock) then
    reading.prefix = queue.prefix
    damaged('meta', 'clock')
  end
  return tonumber(clock or 0)
end
