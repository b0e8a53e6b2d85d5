-- explain: why a message is where it is.
-- ARGV 8 id, or empty
-- Reply: [head, record without its body or nothing, lease or empty]; head is:
--   [now, change, paused, pauses, how many messages of this shard are delivered before it or null, its
--   order in this shard or null, the limit that holds it back or null: see _limits.lua]
local MOST, PROMOTE = 1001, 1024  -- more are not counted; a claim makes so many ready at once

-- Counts the messages of this shard that are delivered before a place in the order of delivery.
-- `member` stands at that place, if it is of this shard. In a limited queue those of its group count.
local function before(rank, order, member, group)
  local count
  if limited then
    count = call('ZLEXCOUNT', LINES, '[' .. line_at(group, 0, ''), '(' .. line_at(group, rank, member))
  else
    count = call('ZCOUNT', READY, '-inf', '(' .. int(rank))
    for _, tie in ipairs(call('ZRANGEBYSCORE', READY, int(rank), int(rank), 'LIMIT', 0, MOST)) do
      if sub(tie, 1, ORDER) < order then count = count + 1 end
    end
  end
  local found = call('ZRANGEBYSCORE', DELAYED, '-inf', due_by_now(), 'WITHSCORES', 'LIMIT', 0, PROMOTE)
  local seen = member == nil or #found < 2 * PROMOTE or call('ZSCORE', READY, member) ~= false
  local members = {}
  for i = 1, #found, 2 do members[#members + 1] = found[i] end
  local groups = limited and groups_of(members)
  for i = 1, #found, 2 do
    local delayed = tonumber(found[i + 1])
    local one = delayed % 256 * STRIPE + floor(delayed / 256)
    local counts = not groups or groups[(i + 1) / 2] == group
    if counts and (one < rank or one == rank and sub(found[i], 1, ORDER) < order) then count = count + 1 end
    seen = seen or found[i] == member
  end
  return seen and min(count, MOST) or MOST
end

define('explain', {'no-writes'}, function()
  local id = ARGV[8]
  local text, lease = call('HGET', RECORDS, id), call('HGET', LEASES, id)
  local ahead, order, limit
  if text then
    local r = parse(id, text)
    text = r and sub(text, 1, #text - #r.body) or text
    if r and not (r.state or lease) and r.due <= now then
      ahead = before(ready_rank(r), r.order, r.member, r.group)
      order, limit = r.order, limited and held_by(r.group)
    end
  end
  local pauses = cjson.decode(call('HGET', META, 'pauses') or '[]')
  return {answer(has('p'), pauses, ahead or null, order or null, limit or null), text, lease or ''}
end)

-- ahead: how many messages of this shard are delivered before a place in the order of delivery.
-- ARGV 8 rank, 9 order
-- Reply: [now, change, count]
define('ahead', {'no-writes'}, function()
  return answer(before(tonumber(ARGV[8]), ARGV[9]))
end)
