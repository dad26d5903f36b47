-- The settlements of one step. storage/redis/lua/include/settle_one.lua documents settlements and answers.

-- @include complete_claimed

-- The answer `done`.
local DONE_ANSWER = pack('>BI8', 1, 0)

-- Apply all settlements in ARGV from `at` on: `count` pairs of id and settlement, then the follow-ups. Return the
-- packed answers. fail_prefix: the prefix of the fail queue's keys.
local function settle_all(queue, name, fail_prefix, manual, count, at)
  local ids, answers = {}, {}
  for i = 1, count do ids[i] = ARGV[at + 2 * i - 2] end
  prefetch(queue, 'active', ids)
  prefetch_if_any(queue, 'successors', ids)
  prefetch_if_any(queue, 'outcomes', ids)
  local complete, finish = completer(queue)
  local then_at = at + 2 * count
  local fail_queue = {name = name, open = function() return open_queue(fail_prefix, manual) end}
  for i = 1, count do
    local id, text = ids[i], ARGV[at + 2 * i - 1]
    if complete(id, text) then
      answers[i] = DONE_ANSWER
    else
      finish()
      answers[i], then_at = settle_packed(queue, id, text, fail_queue, manual, then_at)
    end
  end
  finish()
  return table.concat(answers)
end
